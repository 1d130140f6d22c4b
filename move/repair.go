package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
	"pgreshard/verify"
)

// RepairReport is what a repair found, did, and found afterwards.
type RepairReport struct {
	Before *verify.Report `json:"before"`
	Mended []Mended       `json:"mended"`
	After  *verify.Report `json:"after"`
	// Forgiven are tables of which rows stopped the stream, and were put right by it before anything was compared.
	Forgiven []string `json:"forgiven,omitempty"`
}

// Mended is how many rows of a table were written to a shard and taken away from it.
type Mended struct {
	Table   string `json:"table"`
	Shard   int    `json:"shard"`
	Written int64  `json:"written"`
	Removed int64  `json:"removed"`
}

// RepairError means that differences were found that are not to be mended by a program.
type RepairError struct{ Why string }

func (e *RepairError) Error() string {
	return "nothing was mended: " + e.Why + "; hint: find out what wrote to the shards; start over: " + startOver
}

// repairMost is how many rows may differ for a repair: more is no accident, and the streams stand still meanwhile.
const repairMost = 1000

// Repair compares as VerifyNow does, makes the rows it found as the sources have them, and compares again. The streams stand
// still at one position while the rows are mended, so that nothing can come between what the source is seen to have and what
// is written; a row that has become right meanwhile is left alone.
func (m *Move) Repair(ctx context.Context) (*RepairReport, error) {
	m.verifying.Lock()
	defer m.verifying.Unlock()
	r := &RepairReport{Mended: []Mended{}}
	var tables []verify.Table
	var err error
	if r.Before, tables, err = m.verifyNow(ctx, repairMost+1); err != nil {
		return nil, err
	}
	r.After = r.Before
	for pass := 0; !r.After.Clean() && pass <= len(tables); pass++ {
		done, err := m.repairOnce(ctx, r.After, tables)
		if err != nil {
			return nil, err
		}
		r.Mended = append(r.Mended, done...)
		if r.After, tables, err = m.verifyNow(ctx, repairMost+1); err != nil {
			return nil, err
		}
		if len(done) == 0 {
			break
		}
	}
	return r, nil
}

func (m *Move) repairOnce(ctx context.Context, report *verify.Report, tables []verify.Table) (done []Mended, err error) {
	work, err := repairable(report, tables)
	if err != nil {
		return nil, err
	}
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return nil, err
	}
	mo, err := m.takeMoment(ctx, func(ctx context.Context, mo *moment) (err error) {
		done, err = m.mend(ctx, inv, mo, mendedFirst(work))
		m.router.Lookups.Clear() // it may know translations of mapping rows as they were
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("mend: %w", err)
	}
	mo.close()
	return done, m.home(ctx, func(conn *pgx.Conn) error { return m.book.Journal(ctx, conn, "repair", "after", done) })
}

// wrong are the rows of one table that are not as they must be: their keys, and keys by which rows are placed wrongly.
type wrong struct {
	table  verify.Table
	keys   [][]pg.Datum
	placed []misplaced
}

type misplaced struct {
	shard int // that has such rows
	key   []pg.Datum
}

func repairable(report *verify.Report, tables []verify.Table) (all []*wrong, err error) {
	if report.Differences() > repairMost {
		return nil, &RepairError{fmt.Sprintf("%d rows differ, more than %d", report.Differences(), repairMost)}
	}
	for i := range report.Tables {
		t := &report.Tables[i]
		switch {
		case t.State == verify.Clean:
			continue
		case t.AtLeast || t.State != verify.Differs:
			return nil, &RepairError{fmt.Sprintf("of %s it is not known which rows differ", t.Table)}
		case len(tables[i].Key) == 0:
			return nil, &RepairError{fmt.Sprintf("%s has no key to tell its rows apart", t.Table)}
		}
		w := &wrong{table: tables[i]}
		for _, f := range t.Keys {
			if f.What == verify.Misplaced {
				w.placed = append(w.placed, misplaced{*f.Shard, f.Values})
			} else {
				w.keys = append(w.keys, f.Values)
			}
		}
		all = append(all, w)
	}
	return all, nil
}

// mendedFirst leaves out tables whose places tables that are wrong themselves tell: what is amiss with their rows may be right when those are,
// and is compared again then. Where they tell each other's, all are mended at once.
func mendedFirst(work []*wrong) (first []*wrong) {
	for _, w := range work {
		if !slices.ContainsFunc(work, func(by *wrong) bool { return by != w && slices.Contains(w.table.PlacedBy, by.table.Dest.Name) }) {
			first = append(first, w)
		}
	}
	if len(first) == 0 {
		return work
	}
	return first
}

// mend makes the rows of all tables right, in one transaction a shard.
func (m *Move) mend(ctx context.Context, inv *inventory, mo *moment, work []*wrong) (done []Mended, err error) {
	place, err := m.placerThen(ctx, inv, mo)
	if err != nil {
		return nil, err
	}
	shards := make([]*pgx.Conn, len(m.Destination.Shards))
	defer func() {
		for _, conn := range shards {
			pg.Close(conn)
		}
	}()
	for n := range shards {
		if shards[n], err = m.connect(ctx, m.Destination.Shards[n], pg.Writer); err == nil {
			_, err = shards[n].PgConn().Exec(ctx, "begin"+verify.ByIndex).ReadAll()
		}
		if err != nil {
			return nil, err
		}
	}
	for _, s := range mo.sources {
		if _, err := s.Conn().PgConn().Exec(ctx, verify.ByIndex).ReadAll(); err != nil {
			return nil, err
		}
	}
	for _, w := range work {
		r := &mending{wrong: w, sources: mo.sources, shards: shards, place: place, done: make([]Mended, len(shards))}
		if err := r.run(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", w.table.Dest.Name, err)
		}
		for n, d := range r.done {
			if d.Table, d.Shard = w.table.Dest.Name.String(), n; d.Written+d.Removed > 0 {
				done = append(done, d)
			}
		}
	}
	var g errgroup.Group // a shard whose commit fails has its rows mended the next time
	for _, conn := range shards {
		g.Go(func() error {
			if _, err := conn.Exec(ctx, `select pgreshard.check_epoch($1)`, m.book.Epoch); err != nil {
				return err
			}
			_, err := conn.Exec(ctx, "commit")
			return err
		})
	}
	return done, g.Wait()
}

// rowsIn is how a table is named in a statement: with ONLY, where its children are tables of their own.
func rowsIn(t *pg.Table) string {
	if t.Kind == 'p' {
		return t.Name.SQL()
	}
	return "only " + t.Name.SQL()
}

func quotedNames(names []string) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = ident(n)
	}
	return strings.Join(list, ", ")
}
