package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"pgreshard/pg"
	"pgreshard/verify"
)

// comparison compares both sides beside the writers, of each table what is not known to be equal.
type comparison struct {
	*Move
	inv   *inventory
	proof verify.Request // of everything
	since *changes
	// patience with transactions that keep the streams from being held at one position.
	patience time.Duration
	beyond   bool     // what is asked of both sides besides their rows is asked too
	before   *proving // what was found equal before the last round began; nil: nothing was
}

// round compares what has changed, exactly as of one moment, at which it is visible wherever it was done. A table of which only everything can
// be compared is among it the first time only: that it differs is told before anything is refused. What is found equal is kept table by table:
// where others were disturbed, they are compared as of a later moment, and of the former what has changed since.
func (c *comparison) round(ctx context.Context, first bool) (tables []verify.Table, report *verify.Report, err error) {
	for attempt := 1; ; attempt++ {
		c.before = c.lastProving()
		tables, report, err = c.tryRound(ctx, first)
		if !errors.Is(err, errDisturbed) || attempt == disturbedMost {
			return tables, report, err
		}
		c.log.Info("a table was truncated or rewritten while it was compared; it is compared again as of a later position", "reason", oneLine(err))
	}
}

func (c *comparison) tryRound(ctx context.Context, first bool) (tables []verify.Table, report *verify.Report, err error) {
	if first {
		err := c.keepProving(ctx, func(p *proving) { p.Of, p.Ended = len(c.inv.tables), false })
		if err != nil {
			return nil, nil, err
		}
	}
	taken, read := c.since.takeAll()
	equal := map[pg.Name]bool{}
	defer func() {
		for name, t := range taken {
			if !equal[name] {
				c.since.putBack(name, t, "it was not found equal when it was last compared")
			}
		}
	}()
	was := c.comparingNow()
	tables, report, err = c.compare(ctx, taken, first, equal)
	if err != nil {
		c.setVerified(was)
		return nil, nil, err
	}
	for i, t := range report.Tables {
		if t.State != verify.Clean {
			c.since.doubt(tables[i].Source.Name)
		}
	}
	err = c.conclude(ctx, report, tables)
	if err == nil && report.Clean() {
		err = c.covered(ctx, report, taken, equal, read)
	}
	return tables, report, err
}

// compare is the comparison of a round. Tables that are found equal are in equal. Where what changes cannot be made sure of, everything
// is compared.
func (c *comparison) compare(ctx context.Context, taken map[pg.Name]*touched, first bool, equal map[pg.Name]bool) ([]verify.Table, *verify.Report, error) {
	if c.since.lostBy() == nil {
		if err := c.since.settled(ctx); err != nil {
			c.since.lose(err)
		}
	}
	bounded, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	mo, err := c.takeMoment(bounded, nil)
	if err != nil {
		return nil, nil, err
	}
	defer mo.close()
	now := taken
	if c.since.lostBy() == nil { // what was committed before the moment and was not read yet when taken was
		if err := c.since.reach(bounded); err != nil {
			c.since.lose(err)
		}
		now = c.since.with(taken)
	}
	request := c.proof
	var whole []string
	request.Tables, whole = c.left(now)
	c.log.Debug("compared beside the writers", "whole", strings.Join(whole, "; "))
	request.Tables = slices.DeleteFunc(request.Tables, func(t verify.Table) bool {
		return !first && c.since.onlyWhole(t.Source.Name, now[t.Source.Name])
	})
	defer c.paces(&request)()
	var mu sync.Mutex
	at := mo.positions()
	request.Done = func(i int, t *verify.TableReport) {
		if t.State != verify.Clean {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		equal[request.Tables[i].Source.Name] = true
		if request.Tables[i].Only == nil {
			c.found(ctx, TableVerified{Table: t.Table, At: at, Rows: t.Rows, Finished: time.Now().UTC()})
		}
	}
	report, err := c.compareAt(ctx, c.inv, request, mo)
	if err == nil && c.beyond {
		err = c.beyondRows(ctx, c.inv, request, mo, report)
	}
	if errors.Is(err, verify.ErrRewritten) || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", errDisturbed, err)
	}
	return request.Tables, report, err
}

// disturbedMost bounds how often a round begins again.
const disturbedMost = 20

// errDisturbed: a table was rewritten, or one that a lookup reads is about to be, which waits for the comparison while that waits for the
// lookup, until its time is over.
var errDisturbed = errors.New("tables were truncated or rewritten while they were compared")

// found keeps that a table was found equal. Where that cannot be kept, a worker that comes after a kill compares it again.
func (c *comparison) found(ctx context.Context, t TableVerified) {
	if err := c.keepProving(ctx, func(p *proving) { p.Tables[t.Table] = t }); err != nil {
		c.log.Debug("that a table was found equal is not kept", "table", t.Table, "error", err.Error())
	}
}

// covered keeps that everything that was compared is equal as of one moment, and lets go of the logs up to there.
func (c *comparison) covered(ctx context.Context, report *verify.Report, taken map[pg.Name]*touched, equal map[pg.Name]bool, read map[node]pg.LSN) error {
	now := time.Now().UTC()
	err := c.keepProving(ctx, func(p *proving) {
		for name := range taken {
			if t, there := p.Tables[name.String()]; there && equal[name] {
				t.At, t.Finished = report.At, now
				p.Tables[name.String()] = t
			} else { // it was left to the freeze
				delete(p.Tables, name.String())
			}
		}
		p.Ended = true
	})
	if err != nil || c.since.lostBy() != nil {
		return err
	}
	return c.since.covers(ctx, read)
}

// left is the comparison of what has changed, and of which tables that means everything, and why.
func (c *comparison) left(taken map[pg.Name]*touched) (tables []verify.Table, whole []string) {
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
func (c *comparison) only(t *moved, taken map[pg.Name]*touched) (only *verify.Only, why string) {
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
		if from != nil && !from.lost && from.keys.Len() == 0 {
			continue
		}
		if from == nil || from.lost {
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

// everything compares every row of every table: a comparison that was interrupted is gone on with, of which the tables that were found equal
// are compared by what has changed in them since.
func (c *comparison) everything(ctx context.Context) (*verify.Report, []verify.Table, error) {
	before := c.lastProving()
	if before == nil || before.Ended || c.since.lostBy() != nil {
		c.since.anew()
		if err := c.keepProving(ctx, func(p *proving) { *p = proving{Began: time.Now().UTC(), Tables: map[string]TableVerified{}} }); err != nil {
			return nil, nil, err
		}
	}
	tables, report, err := c.round(ctx, true)
	if err != nil {
		return nil, nil, err
	}
	for i := range report.Tables {
		t := &report.Tables[i]
		if found, ok := c.before.Tables[t.Table]; ok && tables[i].Only != nil {
			t.Rows, t.ReadAt = found.Rows, found.At
		}
	}
	if !report.Clean() { // it is at its end all the same
		err = c.keepProving(ctx, func(p *proving) { p.Ended = true })
	}
	return report, tables, err
}
