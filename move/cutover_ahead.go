package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pgreshard/pg"
	"pgreshard/verify"
)

// What changes while everything is compared beside the writers is compared again, beside them too, until so few rows are left
// that the freeze compares them in milliseconds.
const (
	fewChanges = 2_000
	mostRounds = 5
)

// compareAhead compares both sides beside the writers and keeps account of what changes from then on, so that the freeze compares
// just that. Where that cannot be done exactly, the freeze compares everything of a table, or of all, as it is told why; then how
// long that takes is tried.
func (c *cutover) compareAhead(ctx context.Context) (err error) {
	if !c.MustVerify {
		return nil
	}
	if c.proof, err = c.verification(ctx, c.inv); err != nil {
		return err
	}
	c.spares.close() // those of an earlier attempt may have ended with their server, and each would cost an attempt
	if c.since != nil && c.since.lostBy() != nil {
		c.forgetChanges(ctx)
	}
	if c.since == nil {
		c.since, err = c.followChanges(ctx, c.inv, c.proof.Tables)
	}
	if err == nil {
		err = c.compareRounds(ctx)
	}
	var differs *DifferenceError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &differs):
		return err
	case err != nil:
		c.since.lose(err)
		if err := c.mendedSince(ctx); err != nil {
			return err
		}
	}
	tables, whole := c.left(c.since.now())
	c.log.Info("what the freeze compares of each table is what changes from now on", "but_whole", strings.Join(whole, "; "))
	return c.rehearse(ctx, slices.DeleteFunc(tables, func(t verify.Table) bool { return t.Only != nil }))
}

// forgetChanges ends the account of what changes.
func (c *cutover) forgetChanges(ctx context.Context) {
	if c.since != nil {
		c.since.stop(ctx)
		c.since = nil
	}
}

// compareRounds compares what is not yet known to be equal, each time what has changed while it was compared the last time.
func (c *cutover) compareRounds(ctx context.Context) error {
	for round := range mostRounds {
		if keys, whole := c.since.many(); round > 0 && keys <= fewChanges && !whole {
			return nil
		}
		if err := c.compareRound(ctx, round == 0); err != nil {
			return err
		}
	}
	return nil
}

// compareRound compares what has changed, at a moment at which it is visible wherever it was done. A table that cannot be
// followed is among it the first time only: that it differs is told before anything is refused.
func (c *cutover) compareRound(ctx context.Context, first bool) (err error) {
	c.verifying.Lock()
	defer c.verifying.Unlock()
	taken := c.since.takeAll()
	defer func() {
		if err != nil {
			c.since.putBack(taken)
		}
	}()
	if err := c.since.settled(ctx); err != nil {
		return err
	}
	request := c.proof
	request.Tables, _ = c.left(taken)
	request.Tables = slices.DeleteFunc(request.Tables, func(t verify.Table) bool {
		return !first && c.since.never[t.Source.Name] != ""
	})
	was := c.setVerified(VerifyStatus{State: "running"})
	bounded, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	mo, err := c.takeMoment(bounded, nil)
	var report *verify.Report
	if err == nil {
		defer mo.close()
		report, err = c.compareAt(ctx, c.inv, request, mo)
	}
	if err != nil {
		c.setVerified(was)
		return err
	}
	return errors.Join(c.conclude(ctx, report, request.Tables), differenceOf(report))
}

// left is the comparison of what has changed, and of which tables that means everything, and why.
func (c *cutover) left(taken map[pg.Name]*touched) (tables []verify.Table, whole []string) {
	for i, t := range c.inv.tables {
		vt, why := c.proof.Tables[i], ""
		if vt.Only, why = c.only(t, taken); vt.Only == nil {
			whole = append(whole, fmt.Sprintf("%s: %s", t.name, why))
		}
		tables = append(tables, vt)
	}
	return tables, whole
}

// only are the rows of a table that may differ where they were equal before: those that were changed, and by their places those
// whose lookup may answer otherwise now. It is nil where that may be every row.
func (c *cutover) only(t *moved, taken map[pg.Name]*touched) (only *verify.Only, why string) {
	if err := c.since.lostBy(); err != nil {
		return nil, "what changed is not known: " + oneLine(err)
	}
	if why := c.since.never[t.name]; why != "" {
		return nil, why
	}
	own := taken[t.name]
	if own.whole != "" {
		return nil, own.whole
	}
	only = &verify.Only{Keys: own.keys}
	if t.rule.Lookup == "" {
		return only, ""
	}
	for _, name := range t.reads {
		from := taken[name]
		if from != nil && from.whole == "" && from.keys.Len() == 0 {
			continue
		}
		if from == nil || from.whole != "" {
			return nil, fmt.Sprintf("any row of %s, which its lookup reads, may have changed", name)
		}
		f := slices.IndexFunc(c.inv.byName[name].feeds, func(f feed) bool { return f.query == t.query })
		if f < 0 || !keyed(c.inv.sources[0].Table(name), c.inv.byName[name].feeds[f].key) {
			return nil, fmt.Sprintf("rows of %s changed, and which rows its lookup answers for them is not known", name)
		}
		only.Placed.Merge(from.keys)
	}
	return only, ""
}

// rehearse compares tables once while writes go on, for what that leaves behind and not for what it finds: sessions are open and
// know the tables when the freeze begins, and how long the comparison takes is known.
func (c *cutover) rehearse(ctx context.Context, tables []verify.Table) error {
	if len(tables) == 0 {
		return nil
	}
	request := c.proof
	request.Tables = tables
	limit := max(2*c.MaxFreeze, patience)
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := verify.Run(bounded, request)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return fmt.Errorf("comparing both sides took more than %s, or waits for a lock, and max_freeze is %s, so a freeze would be in vain; hint: raise [cutover] max_freeze, or set verify = false there and run `pgreshard verify` while writers are stopped", limit, c.MaxFreeze)
	}
	return err
}

// patience with a comparison beside the writers, which is slower than one without them; where twice max_freeze is more,
// it is that.
const patience = 10 * time.Second

// verifyDrained compares what has changed since everything was compared, now that nobody writes.
func (c *cutover) verifyDrained(ctx context.Context) error {
	if !c.MustVerify {
		return nil
	}
	at := make([]string, len(c.frozen))
	for i, z := range c.frozen {
		at[i] = z.Barrier.String()
	}
	if c.since.lostBy() == nil {
		if err := errors.Join(c.since.reach(ctx), c.since.lookAgain(ctx)); err != nil {
			c.since.lose(err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	request := c.proof
	var whole []string
	request.Tables, whole = c.left(c.since.now())
	keys := 0
	for _, t := range request.Tables {
		if t.Only != nil {
			keys += t.Only.Keys.Len()
		}
	}
	c.log.Info("compared in the freeze", "keys", keys, "whole", strings.Join(whole, "; "))
	was := c.setVerified(VerifyStatus{State: "running"})
	report, err := verify.Run(ctx, request)
	if err != nil {
		c.setVerified(was)
		return err
	}
	report.At = at
	return errors.Join(c.conclude(ctx, report, request.Tables, whole...), differenceOf(report))
}
