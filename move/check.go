package move

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/verify"
	"pgreshard/verify/fanout"
)

// Check is a question about one table that both sides are asked ([[checks]]).
type Check struct {
	Table      string // "orders" or "public.orders"
	Aggregates []string
	GroupBy    []string
	Where      string
	Keys       [][]string // values of the sharding key's columns; none: every key
}

// CheckOptions say which nodes answer.
type CheckOptions struct {
	Consistency fanout.Consistency
	Behind      time.Duration // fanout.Bounded: how far behind a replica may be
	Timeout     time.Duration // for what one node is asked; 0: as long as it takes
}

// CheckReport is what came of all checks, in their order.
type CheckReport struct {
	Consistency fanout.Consistency   `json:"consistency"`
	At          []string             `json:"at,omitempty"` // the position of each source, where all nodes were asked as of one
	Checks      []*fanout.Comparison `json:"checks"`
}

// check is a Check with all that is known of it.
type check struct {
	Check
	of    *moved
	query *fanout.Query
}

// prepareChecks asks the first source what the checks mean there, and for everything that is wrong with them.
func (m *Move) prepareChecks(ctx context.Context, inv *inventory) (all []check, problems layout.Problems, err error) {
	if len(m.Checks) == 0 { // nobody need be asked
		return nil, nil, nil
	}
	err = m.on(ctx, m.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		for i, c := range m.Checks {
			of, found := inv.checked(c)
			var query *fanout.Query
			if len(found) == 0 {
				root := inv.sources[0].Table(of.name)
				query, found, err = fanout.Describe(ctx, conn, fanout.Question{Table: root, From: rowsIn(root), Aggregates: c.Aggregates, GroupBy: c.GroupBy,
					Where: c.Where, KeyColumns: of.rule.Columns, Keys: c.Keys})
				if err != nil {
					return fmt.Errorf("look at checks[%d] of %s: %w", i, c.Table, err)
				}
			}
			for _, p := range found {
				problems = append(problems, layout.Problem{Table: fmt.Sprintf("checks[%d] of %s", i, c.Table), What: p.What, Hint: p.Hint})
			}
			all = append(all, check{c, of, query})
		}
		return nil
	})
	return all, problems, err
}

// checked finds the table of a check, and what is wrong with its keys.
func (inv *inventory) checked(c Check) (of *moved, problems []fanout.Problem) {
	for _, t := range inv.tables {
		if c.Table != t.name.String() && c.Table != t.name.Table {
			continue
		}
		if of != nil {
			return nil, []fanout.Problem{{What: fmt.Sprintf("%s and %s are called so", of.name, t.name), Hint: "name the schema too"}}
		}
		of = t
	}
	if of == nil {
		return nil, []fanout.Problem{{What: "no moved table is called so", Hint: "`pgreshard plan` lists them"}}
	}
	columns := of.rule.Columns
	if len(c.Keys) > 0 && (of.rule.Omni || len(columns) == 0) {
		return of, []fanout.Problem{{What: "keys: its rows are not placed by a key", Hint: "take keys out"}}
	}
	for _, key := range c.Keys {
		if len(key) != len(columns) {
			return of, []fanout.Problem{{What: fmt.Sprintf("keys: one has %d values, and rows are placed by %s", len(key), strings.Join(columns, ", ")),
				Hint: "give a value for each of these columns, in this order"}}
		}
	}
	return of, nil
}

// Check asks both sides, as they are now, what [[checks]] say. Where replicas may answer, everything else that must be known for
// it is read there too while a leader does not answer.
func (m *Move) Check(ctx context.Context, o CheckOptions) (*CheckReport, error) {
	m.anyNode = o.Consistency != fanout.Strong
	defer func() { m.anyNode = false }()
	var known *checkpoints.Move
	err := m.on(ctx, m.Destination.Shards[0], pg.Reader, func(conn *pgx.Conn) (err error) {
		known, err = checkpoints.FindMove(ctx, conn, m.Name)
		return err
	})
	if err != nil {
		return nil, err
	} else if known == nil {
		return nil, ErrNoMove
	}
	if err := m.expect(known.Spec); err != nil {
		return nil, err
	}
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return nil, err
	}
	return m.runChecks(ctx, inv, o, nil)
}

// CheckNow asks both sides as of one position of each source, while applications write and the streams go on: for the worker
// of this process, as VerifyNow is.
func (m *Move) CheckNow(ctx context.Context, o CheckOptions) (*CheckReport, error) {
	m.verifying.Lock()
	defer m.verifying.Unlock()
	if state := m.currentState(); state != m.steady() {
		return nil, &NotReadyError{Because: []string{"the move is " + state + ", and can be compared beside writers while it is " + m.steady()}, Compare: true}
	}
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return nil, err
	}
	mo, err := m.takeMoment(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer mo.close()
	return m.runChecks(ctx, inv, o, mo)
}

// runChecks asks what is asked for at a moment, or as it is now where there is none.
func (m *Move) runChecks(ctx context.Context, inv *inventory, o CheckOptions, mo *moment) (*CheckReport, error) {
	checks, problems, err := m.prepareChecks(ctx, inv)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, &PlanError{problems}
	}
	var dest *pg.Catalog
	err = m.on(ctx, m.Destination.Shards[0], pg.Reader, func(conn *pgx.Conn) (err error) {
		dest, err = pg.ReadCatalog(ctx, conn)
		return err
	})
	if err != nil {
		return nil, err
	}
	place, report := m.placer(inv, dest), &CheckReport{Consistency: o.Consistency, Checks: []*fanout.Comparison{}}
	if mo != nil {
		if place, err = m.placerThen(ctx, inv, mo); err != nil {
			return nil, err
		}
		for _, lsn := range mo.at {
			report.At = append(report.At, lsn.String())
		}
	}
	ask := &asking{m, o, mo, inv, dest, place}
	for i, c := range checks {
		found, err := ask.both(ctx, &c)
		if err != nil {
			return nil, fmt.Errorf("checks[%d] of %s: %w", i, c.Table, err)
		}
		report.Checks = append(report.Checks, found...)
	}
	return report, nil
}

// asking is one run of the checks.
type asking struct {
	*Move
	CheckOptions
	mo    *moment // nil: as it is now
	inv   *inventory
	dest  *pg.Catalog
	place verify.Placer
}

// both asks both sides. Of a table that every shard has whole, each copy is compared with the first source's.
func (a *asking) both(ctx context.Context, c *check) (found []*fanout.Comparison, err error) {
	into := a.dest.Table(c.of.name)
	if into == nil {
		return nil, fmt.Errorf("table %s is missing on the destination", c.of.name)
	}
	onShards := *c.query
	onShards.From = rowsIn(into)
	sources, shards, err := a.shards(ctx, c)
	if err != nil {
		return nil, err
	}
	source, err := a.side(ctx, *c.query, sources)
	if err != nil {
		return nil, err
	}
	copies := [][]fanout.Shard{shards}
	if c.of.rule.Omni {
		copies = slices.Collect(slices.Chunk(shards, 1))
	}
	for _, one := range copies {
		destination, err := a.side(ctx, onShards, one)
		if err != nil {
			return nil, err
		}
		comparison, err := fanout.Compare(ctx, c.query, source, destination)
		if err != nil {
			return nil, err
		}
		comparison.Table = c.of.name.String()
		if c.of.rule.Omni {
			comparison.Copy = &one[0].Number
		}
		found = append(found, comparison)
	}
	return found, nil
}

func (a *asking) side(ctx context.Context, query fanout.Query, shards []fanout.Shard) (*fanout.Answer, error) {
	return fanout.Ask(ctx, fanout.Request{Query: query, Shards: shards, Consistency: a.Consistency, Behind: a.Behind, Timeout: a.Timeout})
}

// shards are those that are asked: of keys that the check names, only theirs.
func (a *asking) shards(ctx context.Context, c *check) (sources, shards []fanout.Shard, err error) {
	all := func(int) bool { return true }
	ofSources, ofShards := all, all
	switch {
	case c.of.rule.Omni:
		ofSources = func(n int) bool { return n == 0 }
	case len(c.Keys) > 0:
		keys := datumsOf(c.Keys)
		places, err := a.places(ctx, c, keys)
		if err != nil {
			return nil, nil, err
		}
		if !slices.Contains(places, verify.Nowhere) {
			ofShards = func(n int) bool { return slices.Contains(places, n) }
		}
		if places, ok := sourcesOf(c.of, keys); ok {
			ofSources = func(n int) bool { return slices.Contains(places, n) }
		}
	}
	for n := range a.Source.Shards {
		if ofSources(n) {
			sources = append(sources, a.shard(&a.Source, n))
		}
	}
	for n := range a.Destination.Shards {
		if ofShards(n) {
			shards = append(shards, a.shard(&a.Destination, n))
		}
	}
	return sources, shards, nil
}

// places are the shards that have the rows of some keys; Nowhere among them: that is not known of all.
func (a *asking) places(ctx context.Context, c *check, keys [][]pg.Datum) ([]int, error) {
	if a.inv.blind && c.of.rule.Lookup != "" {
		return []int{verify.Nowhere}, nil
	}
	places, err := a.place(ctx, c.of.name, keys)
	switch {
	case err == nil:
		return places, nil
	case a.Consistency != fanout.Strong: // a leader that translates them may not answer
		return []int{verify.Nowhere}, context.Cause(ctx)
	}
	return nil, fmt.Errorf("place its keys: %w", err)
}

func (a *asking) shard(side *Side, n int) fanout.Shard {
	var replicas []pg.Shard
	if n < len(side.Replicas) {
		replicas = side.Replicas[n]
	}
	s := fanout.Shard{Number: n, Nodes: fanout.NodesOf(side.Shards[n], replicas, a.app())}
	switch {
	case a.mo == nil:
	case side == &a.Source:
		s.Snapshot = a.mo.sources[n].ID
	default:
		s.Snapshot = a.mo.shards[n].ID
	}
	return s
}

// openReplica opens a session with a replica of a shard whose leader does not answer; why is its error.
func (m *Move) openReplica(ctx context.Context, shard pg.Shard, why error) (*pgx.Conn, error) {
	side := &m.Destination
	if shard.Side == "source" {
		side = &m.Source
	}
	if shard.Number < len(side.Replicas) {
		for _, r := range side.Replicas[shard.Number] {
			if conn, err := pg.OpenReplica(ctx, r, m.app()); err == nil {
				return conn, nil
			}
		}
	}
	return nil, why
}

func datumsOf(keys [][]string) [][]pg.Datum {
	out := make([][]pg.Datum, len(keys))
	for i, key := range keys {
		for _, value := range key {
			out[i] = append(out[i], pg.Datum{Kind: pg.Text, Bytes: []byte(value)})
		}
	}
	return out
}

// sourcesOf are the sources that have the rows of some keys, where that is told by the keys alone.
func sourcesOf(t *moved, keys [][]pg.Datum) (places []int, ok bool) {
	of := t.sourceRule
	if of == nil || of.Lookup != "" || of.HashQuery != "" || !slices.Equal(of.Columns, t.rule.Columns) {
		return nil, false
	}
	for _, key := range keys {
		shard, err := of.Place(key)
		if err != nil {
			return nil, false
		}
		places = append(places, int(shard))
	}
	return places, true
}
