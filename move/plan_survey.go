package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/survey"
)

// PlanOptions say what a plan tells beside what a move would do and what blocks it.
type PlanOptions struct {
	Placements bool // strategies compared, from the sources' number of shards to the destination's
	From, To   int  // and from the sources' to each of these; 0: to none
	ShowKeys   bool // the largest keys by their text; else by their hash
	EveryKey   bool // the mapping row of every key is asked for, not of a sample
}

// surveyTime is what sampling takes at most, the largest tables first.
const surveyTime = 40 * time.Second

// PlanWith is Plan with what a sample of the sources' own rows tells. Nothing but time keeps a table from being sampled:
// what could not be read is a note.
func (m *Move) PlanWith(ctx context.Context, o PlanOptions) (*Plan, error) {
	p, inv, err := m.plan(ctx, o)
	if err != nil {
		return nil, err
	}
	if inv == nil {
		return p.plan, nil
	}
	began, unseen := p.watch(ctx)
	if len(m.Destination.Shards) > 1 {
		if err := p.checkStatements(ctx, inv); err != nil {
			return nil, err
		}
	}
	var tables []*moved
	for _, t := range inv.tables {
		if len(t.rule.Columns) > 0 {
			tables = append(tables, t)
		}
	}
	size := func(t *moved) int64 { return inv.planned(t).Bytes }
	slices.SortStableFunc(tables, func(a, b *moved) int { return cmp.Compare(size(b), size(a)) })
	within, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	for _, t := range tables {
		r, err := p.survey(within, inv, t, o)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			p.note("%s was not sampled: %s", t.name, whyNot(err))
			continue
		}
		p.plan.Surveys = append(p.plan.Surveys, r)
	}
	if p.fresh && unseen == nil {
		if err := p.foretell(ctx, inv, began); err != nil {
			return nil, err
		}
	}
	return p.plan, nil
}

// whyNot tells an error without the value that the server may quote in it.
func whyNot(err error) string {
	switch code := pg.Code(err); {
	case code == "57014" || errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	case code != "":
		return "the server refuses it with SQLSTATE " + code
	}
	return oneLine(err)
}

// survey samples one table on every source and tells what the destination's layout makes of it.
func (p *planner) survey(ctx context.Context, inv *inventory, t *moved, o PlanOptions) (*survey.Report, error) {
	sample := survey.NewSample(survey.Table{Name: t.name, Rule: t.rule, Query: t.query})
	each := func(do func(*pgx.Conn, int, *pg.Table) error) error {
		for n, catalog := range inv.sources {
			err := p.on(ctx, p.Source.Shards[n], pg.Reader, func(conn *pgx.Conn) error { return do(conn, n, catalog.Table(t.name)) })
			if err != nil {
				return err
			}
		}
		return nil
	}
	err := each(func(conn *pgx.Conn, n int, root *pg.Table) error {
		return sample.Read(ctx, conn, n, inv.sources[n].Leaves(root), survey.Usual)
	})
	if err != nil {
		return nil, err
	}
	if err := sample.Place(ctx, p.sourceAsker(t)); err != nil {
		return nil, err
	}
	p.checkAstray(t, sample)
	err = each(func(conn *pgx.Conn, _ int, root *pg.Table) error { return sample.Count(ctx, conn, root, survey.Usual) })
	if err != nil {
		p.note("the largest keys of %s are estimates: %s", t.name, whyNot(err))
	}
	shards := len(p.Destination.Shards)
	r := sample.Report(shards, o.ShowKeys)
	if o.Placements {
		if c, ok := sample.Configured(t.current(), len(p.Source.Shards), shards); ok {
			r.Costs = append(r.Costs, c)
		}
		r.Costs = append(r.Costs, sample.Compare(len(p.Source.Shards), shards, shards)...)
	}
	if o.From > 0 {
		r.Sweep = sample.Compare(len(p.Source.Shards), o.From, o.To)
	}
	return r, nil
}

// checkAstray: with several sources a row must stand where the source layout's rule says, or streams would take it for
// another source's.
func (p *planner) checkAstray(t *moved, sample *survey.Sample) {
	if t.sourceRule == nil || !slices.Equal(t.sourceRule.Columns, t.rule.Columns) || t.sourceRule.Lookup != t.rule.Lookup {
		return
	}
	astray := sample.Astray(t.sourceRule)
	for n := range p.Source.Shards {
		if rows := astray[n]; rows > 0 {
			p.problem(t.name.String(), fmt.Sprintf("%d of the rows read on source %d belong to another by the source layout's rule, %s", rows, n, t.sourceRule.Describe()),
				fmt.Sprintf("correct the rule with database = %q, or move those rows to where it says", p.Source.Database))
		}
	}
}

// current is how the sources have the table's rows by the same hash; nil where they have them by another key.
func (t *moved) current() layout.Placement {
	switch {
	case t.sourceRule == nil:
		return layout.Modulo(1)
	case slices.Equal(t.sourceRule.Columns, t.rule.Columns) && t.sourceRule.Lookup == t.rule.Lookup && t.sourceRule.Hashes() == t.rule.Hashes():
		return t.sourceRule.Placement()
	}
	return nil
}

// sourceAsker asks the sources for translations as they are now: the first, or where the mapping is sharded, all.
func (p *planner) sourceAsker(t *moved) lookup.Asker {
	return lookup.AskerFunc(func(ctx context.Context, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
		ctx, cancel := context.WithTimeout(ctx, survey.Usual.Time)
		defer cancel()
		shards := p.Source.Shards
		if !t.asked {
			shards = shards[:1]
		}
		total := make([]lookup.Answer, len(keys))
		for n, shard := range shards {
			err := p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
				answers, err := askReadOnly(ctx, conn, q, keys)
				lookup.AddUp(total, answers)
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("ask source %d: %w", n, err)
			}
		}
		return total, nil
	})
}
