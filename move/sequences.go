package move

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// SequencePolicy says what a sequence hands out on each shard of the new layout.
type SequencePolicy string

// The policies of [sequences] policy.
const (
	// SequencesStride: shard i of N hands out every Nth value, i mod N, above every value seen, so that no two shards
	// ever hand out the same.
	SequencesStride SequencePolicy = "stride"
	// SequencesCopy: every shard goes on where the sources were.
	SequencesCopy SequencePolicy = "copy"
	// SequencesNone: sequences are left as they are.
	SequencesNone SequencePolicy = "none"
)

// Sequence is one sequence as one node has it.
type Sequence struct {
	Name      pg.Name
	Start     int64
	Min, Max  int64
	Increment int64
	Cycle     bool
	Last      *int64  // last value handed out or, with a cache, set apart; nil: none yet
	Owner     pg.Name // table of the column that owns it, zero where none does
	Column    string
	Indexed   bool   // the furthest value in that column is found by an index
	Furthest  *int64 // in that column, in the sequence's direction; nil: not asked, or no row
}

// An identity column's sequence is owned with deptype 'i', a serial's with 'a'.
const selectSequences = `
select n.nspname, c.relname, s.seqstart, s.seqmin, s.seqmax, s.seqincrement, s.seqcycle, pg_sequence_last_value(c.oid),
       coalesce(tn.nspname, ''), coalesce(t.relname, ''), coalesce(a.attname, ''),
       exists (select from pg_index i join pg_class ic on ic.oid = i.indexrelid join pg_am am on am.oid = ic.relam
                where i.indrelid = t.oid and i.indkey[0] = a.attnum and am.amname = 'btree' and i.indisvalid and i.indpred is null)
  from pg_sequence s join pg_class c on c.oid = s.seqrelid join pg_namespace n on n.oid = c.relnamespace
  left join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i')
       and d.refclassid = 'pg_class'::regclass and d.refobjsubid > 0
  left join pg_class t on t.oid = d.refobjid left join pg_namespace tn on tn.oid = t.relnamespace
  left join pg_attribute a on a.attrelid = t.oid and a.attnum = d.refobjsubid
       and a.atttypid in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
 where c.relpersistence <> 't' and n.nspname not in ('information_schema', 'pgreshard') and n.nspname !~ '^pg_'
   and not exists (select from pg_depend e where e.classid = 'pg_class'::regclass and e.objid = c.oid and e.deptype = 'e')
 order by 1, 2`

// ReadSequences reads the sequences of one node that belong to no table or to one of tables, with the furthest value
// in the column that owns each: all of them, or (indexed, for use within a freeze) only where an index answers.
func ReadSequences(ctx context.Context, conn *pgx.Conn, tables []pg.Name, indexed bool) ([]Sequence, error) {
	moved := map[pg.Name]bool{{}: true}
	for _, t := range tables {
		moved[t] = true
	}
	rows, err := conn.Query(ctx, selectSequences)
	if err != nil {
		return nil, fmt.Errorf("read sequences: %w", err)
	}
	var out []Sequence
	var s Sequence
	scan := []any{&s.Name.Schema, &s.Name.Table, &s.Start, &s.Min, &s.Max, &s.Increment, &s.Cycle, &s.Last,
		&s.Owner.Schema, &s.Owner.Table, &s.Column, &s.Indexed}
	_, err = pgx.ForEachRow(rows, scan, func() error {
		if moved[s.Owner] {
			out = append(out, s)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read sequences: %w", err)
	}
	if err := readFurthest(ctx, conn, out, indexed); err != nil {
		return nil, fmt.Errorf("read the furthest values of sequences' columns: %w", err)
	}
	return out, nil
}

// readFurthest asks all columns in one round trip.
func readFurthest(ctx context.Context, conn *pgx.Conn, all []Sequence, indexed bool) error {
	var batch pgx.Batch
	for i := range all {
		s := &all[i]
		if s.Column == "" || indexed && !s.Indexed {
			continue
		}
		function := "max"
		if s.Increment < 0 {
			function = "min"
		}
		sql := fmt.Sprintf("select %s(%s)::bigint from %s", function, pgx.Identifier{s.Column}.Sanitize(), s.Owner.SQL())
		batch.Queue(sql).QueryRow(func(row pgx.Row) error { return row.Scan(&s.Furthest) })
	}
	return conn.SendBatch(ctx, &batch).Close()
}

// SequenceSetting is what one sequence is given on one shard.
type SequenceSetting struct {
	Name      pg.Name
	Increment int64
	Min, Max  int64 // moved onto the shard's own values where the sequence cycles
	Next      int64 // the value it hands out next
}

// PlanSequences computes the settings of one shard from what every source node has, read once or several times (a
// list per reading); it takes the furthest of all. Problems come all at once; each names its sequence.
func PlanSequences(policy SequencePolicy, readings [][]Sequence, sources, shard, shards int) ([]SequenceSetting, error) {
	if policy == SequencesNone {
		return nil, nil
	}
	var order []pg.Name
	byName := map[pg.Name][]Sequence{}
	for _, reading := range readings {
		for _, s := range reading {
			if byName[s.Name] == nil {
				order = append(order, s.Name)
			}
			byName[s.Name] = append(byName[s.Name], s)
		}
	}
	if policy == SequencesCopy {
		shard, shards = 0, 1
	}
	var out []SequenceSetting
	var problems []error
	for _, name := range order {
		set, err := planSequence(byName[name], sources, shard, shards)
		if err != nil {
			problems = append(problems, fmt.Errorf("sequence %s: %w", name, err))
			continue
		}
		out = append(out, set)
	}
	return out, errors.Join(problems...)
}

// planSequence finds the nearest value beyond all seen, by a whole step at least (a step may stand for a block of ids
// an application hands out itself), that falls to this shard.
func planSequence(seen []Sequence, sources, shard, shards int) (SequenceSetting, error) {
	s := seen[0]
	step, err := baseStep(seen, sources)
	if err != nil {
		return SequenceSetting{}, err
	}
	// A descending sequence is its mirror image.
	mirror := step < 0
	flip := func(v int64) *big.Int {
		b := big.NewInt(v)
		if mirror {
			b.Neg(b)
		}
		return b
	}
	one, n, k := big.NewInt(1), big.NewInt(int64(shards)), flip(step)
	lowest, highest := flip(s.Min), flip(s.Max)
	if mirror {
		lowest, highest = highest, lowest
	}

	// Values are residue + k·m; m mod N is the shard. Where the step is one the residue is 0, so the value mod N is.
	residue := new(big.Int).Mod(flip(s.Start), k)
	index := func(v *big.Int) *big.Int { // smallest m with residue + k·m >= v
		m := new(big.Int).Sub(v, residue)
		return m.Add(m, k).Sub(m, one).Div(m, k)
	}
	mine := func(m *big.Int) *big.Int { // smallest m' >= m of this shard
		want := int64(shard)
		if mirror { // so that the value itself, not its mirror image, is i mod N
			want = int64((shards - shard) % shards)
		}
		gap := new(big.Int).Sub(big.NewInt(want), m)
		return gap.Add(gap.Mod(gap, n), m)
	}
	value := func(m *big.Int) *big.Int { return new(big.Int).Add(residue, new(big.Int).Mul(k, m)) }

	next := value(mine(index(furthest(seen, flip, k))))
	set := SequenceSetting{Name: s.Name, Min: s.Min, Max: s.Max}
	if increment := new(big.Int).Mul(n, big.NewInt(step)); increment.IsInt64() {
		set.Increment = increment.Int64()
	} else {
		return SequenceSetting{}, errors.New("its increment times the number of shards is out of range")
	}
	first := value(mine(index(lowest)))
	if next.Cmp(highest) > 0 {
		if !s.Cycle {
			return SequenceSetting{}, fmt.Errorf("no value is left for shard %d below its bound; hint: make it a bigint, or set [sequences] policy = \"none\"", shard)
		}
		next = new(big.Int).Set(first)
	}
	if next.Cmp(highest) > 0 {
		return SequenceSetting{}, errors.New("it has fewer values than there are shards; hint: set [sequences] policy = \"none\"")
	}
	if mirror {
		next.Neg(next)
		first.Neg(first)
	}
	set.Next = next.Int64()
	switch { // a sequence that cycles goes round to its bound, which must be the shard's own
	case !s.Cycle || shards == 1:
	case mirror:
		set.Max = first.Int64()
	default:
		set.Min = first.Int64()
	}
	return set, nil
}

// furthest is the lowest value that may be handed out next: a step beyond all that were seen. Where none was, the
// start value.
func furthest(seen []Sequence, flip func(int64) *big.Int, k *big.Int) *big.Int {
	least := flip(seen[0].Start)
	for _, s := range seen {
		for i, v := range []*int64{s.Last, s.Furthest} {
			if v == nil || i == 1 && s.Cycle { // rows of an earlier round say nothing
				continue
			}
			if next := new(big.Int).Add(flip(*v), k); next.Cmp(least) > 0 {
				least = next
			}
		}
	}
	return least
}

// baseStep is the increment the application meant. Sources that already stride (each every Mth value, another
// remainder) are given theirs divided by M.
func baseStep(seen []Sequence, sources int) (int64, error) {
	step := seen[0].Increment
	for _, s := range seen {
		if s.Increment != step {
			return 0, fmt.Errorf("its increment is %d on one source and %d on another; hint: make them equal, or set [sequences] policy = \"none\"", step, s.Increment)
		}
		if s.Cycle != seen[0].Cycle {
			return 0, errors.New("it cycles on some sources only; hint: make them equal, or set [sequences] policy = \"none\"")
		}
	}
	if sources < 2 || step%int64(sources) != 0 {
		return step, nil
	}
	base := step / int64(sources)
	remainders := map[int64]bool{}
	for _, s := range seen {
		if s.Last == nil {
			return step, nil
		}
		remainders[((*s.Last/base)%int64(sources)+int64(sources))%int64(sources)] = true
	}
	if len(remainders) == sources {
		return base, nil
	}
	return step, nil
}

// PrepareSequences gives one shard's sequences their increment and bounds, before the freeze: it changes the catalog,
// a lock and a write each, in one transaction. Only before the switch. It may be repeated.
func PrepareSequences(ctx context.Context, conn *pgx.Conn, all []SequenceSetting) error {
	var sql strings.Builder
	for _, s := range all {
		fmt.Fprintf(&sql, "alter sequence %s increment by %d minvalue %d maxvalue %d start with %d restart with %d;\n",
			s.Name.SQL(), s.Increment, s.Min, s.Max, s.Next, s.Next)
	}
	if sql.Len() == 0 {
		return nil
	}
	if _, err := conn.PgConn().Exec(ctx, sql.String()).ReadAll(); err != nil {
		return fmt.Errorf("prepare sequences: %w", err)
	}
	return nil
}

// A sequence never goes back: what it has handed out since (after an open that was not noticed) stays handed out.
const setSequences = `
select setval(s.name::regclass, s.next, false)
  from unnest($1::text[], $2::bigint[], $3::boolean[]) s (name, next, up)
 where coalesce(case when s.up then pg_sequence_last_value(s.name::regclass) < s.next
                     else pg_sequence_last_value(s.name::regclass) > s.next end, true)`

// SetSequences sets what one shard's sequences hand out next, all in one statement: for use within the freeze. Only
// before the switch: later the shards have handed out values that the sources know nothing of.
func SetSequences(ctx context.Context, conn *pgx.Conn, all []SequenceSetting) error {
	var names []string
	var next []int64
	var up []bool
	for _, s := range all {
		names, next, up = append(names, s.Name.SQL()), append(next, s.Next), append(up, s.Increment > 0)
	}
	if _, err := conn.Exec(ctx, setSequences, names, next, up); err != nil {
		return fmt.Errorf("set sequences: %w", err)
	}
	return nil
}
