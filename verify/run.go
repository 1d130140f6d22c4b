package verify

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"pgreshard/verify/fanout"
)

// verifier is one Run.
type verifier struct {
	Request
	sources, shards []*node
	utf8            bool          // encodings differ
	scans           chan struct{} // one place for each scan that may run
	blockRows       int64         // bounds the rows of differing buckets held at once, both sides together; a single bucket may have more
	rangePages      int64         // a table of fewer blocks is not worth a second scan
}

const (
	blockRows  = 200_000
	rangePages = 16384 // 128 MB
	mostRanges = 1024  // of a table on one node
)

// begin opens a session on every node.
func begin(ctx context.Context, r Request) (*verifier, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	v := &verifier{Request: r, scans: make(chan struct{}, r.Parallel), blockRows: blockRows, rangePages: rangePages}
	v.sources, v.shards = nodes(r.Sources, "source"), nodes(r.Shards, "shard")
	v.reach(ctx)
	return v, nil
}

// Run compares. Differences are no error: they are in the report. Where nodes did not answer, the tables they hold are
// Partial and the first of them is also the error, a *Failure; the report holds what the others said.
func Run(ctx context.Context, r Request) (*Report, error) {
	report := &Report{Started: time.Now(), Tables: make([]TableReport, len(r.Tables))}
	v, err := begin(ctx, r)
	if err != nil {
		return nil, err
	}
	defer v.close()

	errs := make([]error, len(r.Tables))
	var group errgroup.Group
	group.SetLimit(v.Parallel)
	for _, i := range largestFirst(r.Tables) {
		group.Go(func() error {
			errs[i] = v.table(ctx, &v.Tables[i], &report.Tables[i])
			if v.Done != nil {
				v.Done(i, &report.Tables[i])
			}
			return nil
		})
	}
	_ = group.Wait()
	report.Finished = time.Now()
	if err := context.Cause(ctx); err != nil {
		return report, err
	}
	for _, err := range errs {
		if err != nil {
			return report, err
		}
	}
	return report, nil
}

// nodes gives each Node its sessions.
func nodes(from []Node, side string) []*node {
	list := make([]*node, len(from))
	for i, n := range from {
		list[i] = &node{Node: n, side: side}
	}
	return list
}

// largestFirst orders the tables so that no large one is left to run alone.
func largestFirst(tables []Table) []int {
	order := make([]int, len(tables))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(tables[j].Source.Pages, tables[i].Source.Pages) })
	return order
}

func (v *verifier) all() []*node { return slices.Concat(v.sources, v.shards) }

// reach opens a session on every node at once.
func (v *verifier) reach(ctx context.Context) {
	var all sync.WaitGroup
	for _, n := range v.all() {
		all.Go(func() { n.reach(ctx) })
	}
	all.Wait()
	for _, n := range v.all() {
		first := v.sources[0].encoding
		v.utf8 = v.utf8 || (n.dead == nil && first != "" && n.encoding != first)
	}
}

func (v *verifier) close() {
	for _, n := range v.all() {
		n.close()
	}
}

// on runs one scan on one node as soon as there is a place for it.
func (v *verifier) on(ctx context.Context, n *node, f func(*pgconn.PgConn) error) error {
	if v.Pace != nil {
		if err := v.Pace(ctx); err != nil {
			return err
		}
	}
	return v.onWith(ctx, n, "", f)
}

func (v *verifier) onWith(ctx context.Context, n *node, settings string, f func(*pgconn.PgConn) error) error {
	select {
	case v.scans <- struct{}{}:
		defer func() { <-v.scans }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return n.use(ctx, settings, f)
}

// table compares one table and settles its report, also where it returns an error.
func (v *verifier) table(ctx context.Context, t *Table, report *TableReport) error {
	report.Table = t.Dest.Name.String()
	defer report.settle()
	compare := v.compareSharded
	if t.Omni {
		compare = v.compareCopies
	}
	err := compare(ctx, t, report)
	if err == nil && !t.Omni && v.Place != nil && len(t.PlaceColumns) > 0 {
		err = v.places(ctx, t, report)
	}
	if report.settle(); err == nil && (t.Only == nil || report.State != Clean) {
		err = v.asItWas(ctx, t, v.all())
	}
	if err == nil {
		return nil
	}
	failure, ok := errors.AsType[*Failure](err)
	if !ok {
		failure = &Failure{Side: "source", Number: v.sources[0].Number, Reason: fanout.Reason(err), err: err}
	}
	report.Failures = append(report.Failures, failure)
	return err
}

// compareSharded compares all sources together with all shards together.
func (v *verifier) compareSharded(ctx context.Context, t *Table, report *TableReport) error {
	left, right := v.side(t, v.sources...), v.side(t, v.shards...)
	if t.Only != nil {
		rows, err := v.compareOnly(ctx, t, left, right, report)
		report.Rows = rows
		return err
	}
	var l, r sums
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() (err error) { l, err = v.sums(inner, t, left); return err })
	group.Go(func() (err error) { r, err = v.sums(inner, t, right); return err })
	if err := group.Wait(); err != nil {
		return err
	}
	report.Rows = l.rows()
	list, rows := differing(l, r)
	return v.diff(ctx, t, left, right, list, rows, report)
}

// compareCopies compares the first source with every other copy, one by one.
func (v *verifier) compareCopies(ctx context.Context, t *Table, report *TableReport) error {
	copies, others := v.all(), len(v.sources)-1
	if v.OneSource {
		copies, others = append([]*node{v.sources[0]}, v.shards...), 0
	}
	buckets := make([]sums, len(copies))
	if t.Only == nil {
		group, inner := errgroup.WithContext(ctx)
		for i, n := range copies {
			group.Go(func() (err error) { buckets[i], err = v.sums(inner, t, v.side(t, n)); return err })
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	report.Rows = buckets[0].rows()
	first := v.side(t, copies[0])
	for i, n := range copies[1:] {
		var err error
		if t.Only != nil {
			report.Rows, err = v.compareOnly(ctx, t, first, v.side(t, n), report)
		} else {
			list, rows := differing(buckets[0], buckets[i+1])
			err = v.diff(ctx, t, first, v.side(t, n), list, rows, report)
		}
		if err != nil {
			return err
		}
		if i < others {
			report.BetweenSources = report.Differences()
		}
	}
	return nil
}

// side is nodes of one side of the move, which read a table under that side's types.
func (v *verifier) side(t *Table, nodes ...*node) side {
	e := expressions{own: t.Source, other: t.Dest, utf8: v.utf8}
	if nodes[0].side == "shard" {
		e.own, e.other = t.Dest, t.Source
	}
	return side{nodes: nodes, sql: e}
}
