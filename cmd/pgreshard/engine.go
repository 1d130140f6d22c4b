package main

import (
	"context"
	"io"

	"pgreshard/move"
	"pgreshard/verify"
)

// engine is what the commands ask of a move. Package move has it; tests have one of their own.
type engine interface {
	Plan(context.Context, move.PlanOptions) (report, error)
	// Migrate runs the move to its end, or for as long as there is anything to be asked for. Before the freeze it asks Ready,
	// where there is one, which may wait; a no leaves the destination following the source.
	Migrate(context.Context, move.MigrateOptions) error
	// Cutover asks Migrate of the same engine, which runs in another goroutine, to cut over now.
	Cutover(context.Context, move.CutoverOptions) (move.CutoverReport, error)
	// Rollback and CompleteNow ask it, after the switch, to switch back, or to end the move.
	Rollback(context.Context) (move.CutoverReport, error)
	CompleteNow(ctx context.Context, release bool) error
	Verify(context.Context) (report, error)
	// VerifyNow is of the engine whose Migrate runs in another goroutine and follows its sources.
	VerifyNow(context.Context) (*verify.Report, error)
	// Repair is VerifyNow that makes what it found right and compares again.
	Repair(context.Context) (*move.RepairReport, error)
	// RepairStopped is Repair where no worker runs: this process is the worker meanwhile.
	RepairStopped(context.Context) (*move.RepairReport, error)
	// Check asks both sides what [[checks]] say, as they are now; CheckNow is to it what VerifyNow is to Verify.
	Check(context.Context, move.CheckOptions) (*move.CheckReport, error)
	CheckNow(context.Context, move.CheckOptions) (*move.CheckReport, error)
	// Route takes a value for each of the sharding columns; an empty table: where all rules agree.
	Route(ctx context.Context, table string, key []string) (report, error)
	Layout(context.Context) (report, error)
	// Cancel and Complete act on the databases themselves; no worker may run. Complete says whether a retired source still
	// has the fence.
	Cancel(context.Context, move.CancelOptions) error
	Complete(ctx context.Context, release bool) (fenced bool, err error)

	// Evidence reads there what the move can show for itself.
	Evidence(context.Context) (*move.Evidence, error)

	// Status reads the bookkeeping tables; Snapshot is what the worker in this process knows, and asks nobody.
	Status(context.Context) (move.Status, error)
	Snapshot() move.Status
	Close()
}

// report is a command's result. As JSON it is itself.
type report interface {
	WriteText(io.Writer) error
	OK() bool // false: exit 3
}
