package main

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"pgreshard/copier"
	"pgreshard/move"
)

// moveEngine is package move behind what the commands ask.
type moveEngine struct {
	*move.Move
	hours window // in which migrate cuts over
}

// openEngine makes the engine of a configured move; nothing is connected yet.
func openEngine(_ context.Context, c *Config, log *slog.Logger) (engine, error) {
	typed, err := c.typed()
	if err != nil {
		return nil, err
	}
	return moveEngine{move.New(typed, log), c.Cutover.Hours}, nil
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
		HideKeys:       !c.General.ShowKeys,
		LookupTimeout:  time.Duration(c.General.LookupTimeout) * time.Millisecond,
		LookupAttempts: c.General.LookupAttempts,

		CopyWorkers: c.Copy.Workers, CopySources: c.Copy.Sources, CopyFormat: copier.Format(c.Copy.Format),
		BatchBytes: int(c.Stream.BatchBytes), BatchDelay: time.Duration(c.Stream.BatchDelay), OnDDL: c.Stream.OnDDL, Confirm: c.Stream.Confirm,
		WALBudget: int64(c.Stream.WALBudget), OnWALBudget: c.Stream.OnWALBudget,

		MaxFreeze:   time.Duration(c.Cutover.MaxFreeze),
		LockTimeout: time.Duration(c.Cutover.LockTimeout),
		Attempts:    c.Cutover.Attempts,
		MaxLag:      int64(c.Cutover.MaxLag),
		MustVerify:  c.Cutover.Verify,
		Reverse:     c.Cutover.Reverse && c.moves(),
		Publishes:   c.CDC.Enabled,
		Sequences:   c.Sequences.Policy,
		Checks:      c.checks(),
		OnBlockers:  c.Cutover.OnBlockers, EndOldSessions: c.Cutover.EndOldSessions,
		Hooks: move.Hooks{Timeout: time.Duration(c.Hooks.Timeout),
			BeforeFreeze: c.Hooks.BeforeFreeze, AfterSwitch: c.Hooks.AfterSwitch, AfterUndo: c.Hooks.AfterUndo},

		PgBin:    os.Getenv("PGRESHARD_PG_BIN"),
		StateDir: state,
		Address:  c.HTTP.Listen,
	}, nil
}

func (c *Config) side(s clusterSection) move.Side {
	return move.Side{Database: s.Database, Layout: s.Layout, Shards: s.shards(), Replicas: s.replicas(), Spec: c.spec(s)}
}

func (e moveEngine) Migrate(ctx context.Context, o move.MigrateOptions) error {
	err := e.Move.Migrate(ctx, o)
	if move.InTheWay(err) {
		return &exitError{code: exitCode(err), hint: e.endThem(ctx), err: err}
	}
	return err
}

// endThem says how to end the transactions that are in a cutover's way now.
func (e moveEngine) endThem(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	open, err := e.OpenTransactions(ctx)
	if err != nil || len(open) == 0 {
		return "the source serves writes; no transaction is in the way any more: run the same command again"
	}
	return "the source serves writes; end what is in the way, then run the same command again: " + strings.Join(open, "; ")
}

func (e moveEngine) Complete(ctx context.Context, release bool) (fenced bool, err error) {
	if err := e.Move.Complete(ctx, release); err != nil {
		return false, err
	}
	return e.SourceFenced(ctx)
}

// Snapshot and Status also know of the hours in which migrate cuts over.
func (e moveEngine) Snapshot() move.Status {
	s := e.hours.tell(e.Move.Snapshot(), time.Now())
	for i := range s.Cutover.Hooks { // the user's own programs may print what they connect with
		s.Cutover.Hooks[i].Output = redact(s.Cutover.Hooks[i].Output)
	}
	return s
}

func (e moveEngine) Status(ctx context.Context) (move.Status, error) {
	s, err := e.Move.Status(ctx)
	return e.hours.tell(s, time.Now()), err
}

func (e moveEngine) Verify(ctx context.Context) (report, error) {
	r, err := e.Move.Verify(ctx)
	if err != nil {
		return nil, err
	}
	return verifyReport{Report: r}, nil
}

func (e moveEngine) Layout(ctx context.Context) (report, error) {
	r, err := e.ServingLayout(ctx)
	if err != nil {
		return nil, err
	}
	databases, err := e.DatabasesOf(r)
	return layoutReport{r, databases}, err
}

func (e moveEngine) Plan(ctx context.Context, o move.PlanOptions) (report, error) {
	p, err := e.PlanWith(ctx, o)
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
