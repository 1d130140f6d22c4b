package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"pgreshard/copier"
	"pgreshard/move"
)

// moveEngine is package move behind what the commands ask.
type moveEngine struct{ *move.Move }

// openEngine makes the engine of a configured move; nothing is connected yet.
func openEngine(_ context.Context, c *Config, log *slog.Logger) (engine, error) {
	typed, err := c.typed()
	if err != nil {
		return nil, err
	}
	return moveEngine{move.New(typed, log)}, nil
}

// typed is the configuration as arguments of a move.
func (c *Config) typed() (move.Config, error) {
	state, err := stateDir(c.Move.Name)
	if err != nil {
		return move.Config{}, err
	}
	return move.Config{
		Name:        c.Move.Name,
		Source:      c.side(c.Source),
		Destination: c.side(c.Destination),

		Include: c.Tables.Include, Exclude: c.Tables.Exclude,
		SetIdentity:  c.Tables.ReplicaIdentity == "full",
		CreateSchema: c.Schema.Create, Owners: c.Schema.Owners, Grants: c.Schema.Grants,
		SkipConstraint: c.Schema.Skip,

		LookupBytes:    int64(c.General.LookupCacheSize),
		LookupTimeout:  time.Duration(c.General.LookupTimeout) * time.Millisecond,
		LookupAttempts: c.General.LookupAttempts,

		CopyWorkers: c.Copy.Workers, CopySources: c.Copy.Sources, CopyFormat: copier.Format(c.Copy.Format),
		BatchBytes: int(c.Stream.BatchBytes), BatchDelay: time.Duration(c.Stream.BatchDelay), OnDDL: c.Stream.OnDDL,

		MaxFreeze:   time.Duration(c.Cutover.MaxFreeze),
		LockTimeout: time.Duration(c.Cutover.LockTimeout),
		Attempts:    c.Cutover.Attempts,
		MaxLag:      int64(c.Cutover.MaxLag),
		MustVerify:  c.Cutover.Verify,
		Reverse:     c.Cutover.Reverse,
		Sequences:   c.Sequences.Policy,

		PgBin:    os.Getenv("PGRESHARD_PG_BIN"),
		StateDir: state,
		Address:  c.HTTP.Listen,
	}, nil
}

func (c *Config) side(s clusterSection) move.Side {
	return move.Side{Database: s.Database, Layout: s.Layout, Shards: s.shards(), Spec: c.spec(s)}
}

func (e moveEngine) Migrate(ctx context.Context, ready func(context.Context) (bool, error)) error {
	return e.Move.Migrate(ctx, move.MigrateOptions{Ready: ready})
}

func (e moveEngine) Verify(ctx context.Context) (report, error) {
	r, err := e.Move.Verify(ctx)
	if err != nil {
		return nil, err
	}
	return verifyReport{r}, nil
}

func (e moveEngine) Layout(ctx context.Context) (report, error) {
	r, err := e.ServingLayout(ctx)
	if err != nil {
		return nil, err
	}
	return layoutReport{r}, nil
}

func (e moveEngine) Plan(ctx context.Context) (report, error) {
	p, err := e.Move.Plan(ctx)
	if err != nil {
		return nil, err
	}
	return planReport{p}, nil
}

func (e moveEngine) Route(ctx context.Context, table string, key []string) (report, error) {
	r, err := e.Move.Route(ctx, table, key)
	if err != nil {
		return nil, err
	}
	return routeReport{r}, nil
}
