package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"pgreshard/move"
	"pgreshard/status"
)

func (a *app) rollbackCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "rollback",
		Short: "Switch back to the old layout",
		Long: "Switch back to the old layout, with the protocol of a cutover. The worker that keeps the old layout following\n" +
			"([cutover] reverse) is asked to, and what came of it is waited for. Nothing that was written since the switch is lost.\n" +
			"Afterwards `pgreshard migrate` follows the source again, and `pgreshard cancel` takes away what the move made.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(e engine, cfg *Config) error {
				var r cutoverReport
				if err := a.ask(c.Context(), e, cfg, "rollback", struct{}{}, &r.CutoverReport); err != nil {
					return err
				}
				return a.print(asJSON, r)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// rollbackVerb is POST /rollback.
func (a *app) rollbackVerb(e engine) status.Verb {
	return verb(func(ctx context.Context, _ struct{}) (move.CutoverReport, error) {
		a.log.Info("a rollback is asked for")
		return e.Rollback(ctx)
	})
}

type completeOptions struct {
	Release bool `json:"release_source"`
}

// completeVerb is POST /complete.
func (a *app) completeVerb(e engine) status.Verb {
	return verb(func(ctx context.Context, o completeOptions) (struct{}, error) {
		a.log.Info("the move is to be completed")
		return struct{}{}, e.CompleteNow(ctx, o.Release)
	})
}

// complete has the worker end the move, or does so itself where none runs.
func (a *app) complete(ctx context.Context, e engine, cfg *Config, release bool) (fenced bool, err error) {
	var none struct{}
	err = a.ask(ctx, e, cfg, "complete", completeOptions{release}, &none)
	switch {
	case errors.Is(err, errNoWorker):
		if fenced, err = e.Complete(ctx, release); err == nil {
			a.ended(ctx, e, cfg.Move.Name)
		}
		return fenced, err
	case err != nil:
		return false, err
	}
	return !release, nil
}

var errNoWorker = errors.New("no worker runs this move")

// noWorker is why a verb cannot be done by a worker that is not there.
func noWorker(verb string, s move.Status) error {
	switch {
	case verb == "rollback" && s.State == move.StateCompleted:
		return &exitError{code: exitCheck, hint: "a move back is a move of its own, from the new layout to one with the old shards",
			err: fmt.Errorf("the move is completed and the old layout does not follow any more: all that was written since the switch would be lost (%w)", errNoWorker)}
	case verb == "rollback" && s.State == move.StateSwitched:
		return &exitError{code: exitFailed, hint: "`pgreshard migrate` runs one, which goes on from where the old layout stands", err: errNoWorker}
	case verb == "rollback":
		return &exitError{code: exitFailed, hint: "a rollback is for a move that has switched", err: fmt.Errorf("the move is %s (%w)", s.State, errNoWorker)}
	}
	return &exitError{code: exitFailed, hint: "`pgreshard migrate --hold` runs one", err: errNoWorker}
}
