package move

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
)

// step is one of the recipe of a cutover. The journal, the page and a dry run know it by its name.
type step struct {
	name string
	run  func(context.Context) error
	// tell says, a line each, what run would do as things are now; it changes nothing.
	tell   func(context.Context) ([]string, error)
	frozen bool // within the freeze, so bounded by max_freeze
	undone bool // where it fails what was done is undone
}

// recipe is a cutover, in its order.
func (c *cutover) recipe() []step {
	list := []step{
		{name: "arm", run: func(ctx context.Context) error { return c.arm(ctx, c.inv) }, tell: c.tellArm},
		{name: "check", run: c.check, tell: c.tellCheck},
		{name: "freeze", run: c.freeze, tell: c.tellFreeze, undone: true},
		{name: "drain", run: c.drain, tell: c.tellDrain, frozen: true, undone: true},
		{name: "finish", run: c.finish, tell: c.tellFinish, frozen: true, undone: true},
		{name: "verify", run: c.verifyDrained, tell: c.tellVerify, frozen: true, undone: true},
		{name: "seal", run: c.seal, tell: c.tellSeal, frozen: true, undone: true},
		{name: "switch", run: c.switchLayout, tell: c.tellSwitch, undone: true},
		{name: stepOpen, run: c.openSealed, tell: c.tellOpen},
	}
	if c.amend != nil {
		list = c.amend(list)
	}
	return list
}

// StepReport is what one step of a cutover did, and in what time; of a dry run, what it would do.
type StepReport struct {
	Name    string   `json:"step"`
	Seconds float64  `json:"seconds"`
	Would   []string `json:"would,omitempty"`
	Ended   []string `json:"ended,omitempty"` // transactions that were in the way ([cutover] on_blockers)
}

// do journals what begins and what is done, around doing it.
func (c *cutover) do(ctx context.Context, s step) error {
	c.mu.Lock()
	c.cutover.Step = s.name
	c.mu.Unlock()
	if c.beforeStep != nil {
		c.beforeStep(s.name)
	}
	began := time.Now()
	if err := c.journal(ctx, s.name, "before", c.owed...); err != nil {
		return &stepError{s.name, err}
	}
	if err := s.run(ctx); err != nil {
		return &stepError{s.name, err}
	}
	took := time.Since(began).Seconds()
	c.log.Info("cutover", "step", s.name, "seconds", took)
	report := StepReport{Name: s.name, Seconds: took}
	if s.name == "freeze" {
		report.Ended = c.ended
	}
	c.did(report)
	switch {
	case s.name == "switch": // its own record is the journal: nothing may stand between it and open
		return nil
	case s.name == "freeze" || s.frozen: // with what comes next: a commit is time in which nobody can write
		c.owed = []checkpoints.Entry{{Step: s.name, Phase: "after"}}
		return nil
	}
	if err := c.journal(ctx, s.name, "after"); err != nil {
		return &stepError{s.name, err}
	}
	return nil
}

// did notes a step for who asked for the cutover and who watches it.
func (c *cutover) did(s StepReport) {
	c.done = append(c.done, s)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps = slices.Clone(c.done)
}

// dryRun tells every step as things are now and changes nothing.
func (c *cutover) dryRun(ctx context.Context) (all []StepReport, err error) {
	for _, s := range c.recipe() {
		began := time.Now()
		would, err := s.tell(ctx)
		if err != nil {
			return nil, &stepError{s.name, err}
		}
		all = append(all, StepReport{Name: s.name, Seconds: time.Since(began).Seconds(), Would: would})
	}
	return append(all, StepReport{Name: "undo", Would: []string{
		"only where a step before switch fails, or the freeze lasts longer than " + c.MaxFreeze.String() +
			": every source serves writes again, what finish made is taken back"}}), nil
}

// journal writes what is owed with it.
func (c *cutover) journal(ctx context.Context, step, phase string, owed ...checkpoints.Entry) error {
	err := c.home(ctx, func(conn *pgx.Conn) error { return c.book.Journal(ctx, conn, step, phase, struct{}{}, owed...) })
	if err == nil {
		c.owed = nil
	}
	return err
}

type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// eachSource is one line a source, from what fn asks it.
func (c *cutover) eachSource(ctx context.Context, fn func(ctx context.Context, n int, conn *pgx.Conn) (string, error)) ([]string, error) {
	lines := make([]string, len(c.Source.Shards))
	err := c.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		line, err := fn(ctx, n, conn)
		lines[n] = fmt.Sprintf("%s: %s", c.nodeWords(node{true, n}), line)
		return err
	})
	return lines, err
}

// eachShard is one line a shard.
func (c *cutover) eachShard(say func(n int) string) (lines []string) {
	for n := range c.Destination.Shards {
		lines = append(lines, fmt.Sprintf("%s: %s", c.nodeWords(node{number: n}), say(n)))
	}
	return lines
}
