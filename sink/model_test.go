package sink_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgreshard/pgtest"
)

// What follows is the protocol of copy, resume, stream and crash as a model, without a server: every decision of chance is
// asked of a chooser, so that it runs at random with a seed, and through all decisions where a world is small enough. A
// rule left out must end some runs wrong: that is what the rule is for.

// chooser decides: pick gives a number below n, chance a true about once in n.
type chooser interface {
	pick(n int) int
	chance(n int) bool
}

type dice struct{ *rand.Rand }

func (d dice) pick(n int) int    { return d.IntN(n) }
func (d dice) chance(n int) bool { return d.IntN(n) == 0 }

// every takes all ways through a world, one after the other.
type every struct {
	at, of []int
	next   int
}

func (e *every) pick(n int) int {
	if e.next == len(e.at) {
		e.at, e.of = append(e.at, 0), append(e.of, n)
	}
	e.next++
	return e.at[e.next-1]
}

func (e *every) chance(int) bool { return e.pick(2) == 0 }

// more begins the next way; false after the last one.
func (e *every) more() bool {
	e.next = 0
	for n := len(e.at); n > 0; n = len(e.at) {
		if e.at[n-1]++; e.at[n-1] < e.of[n-1] {
			return true
		}
		e.at, e.of = e.at[:n-1], e.of[:n-1]
	}
	return false
}

// modelRule is a rule of docs/design.md.
type modelRule string

const (
	readAgainIsUpsert  modelRule = "rows that are read again are upserted"
	partialIsFetched   modelRule = "an update that lacks columns and finds no row reads it from the source"
	fetchMovesEnd      modelRule = "and its table forgives up to that moment"
	rekeyedIsFetched   modelRule = "across a change of the primary key the row that stands there is not trusted"
	putNowhereElse     modelRule = "where the identity lacks the key, a row that is put is taken off all other shards"
	fileIsCompared     modelRule = "a chunk is a range of one file"
	aheadSkips         modelRule = "a shard skips what it has"
	outboxKeepsImage   modelRule = "the transaction that deletes a row which moves keeps its image"
	aheadIsSearched    modelRule = "while a shard is ahead, a row is looked for on all"
	resumeIsRemembered modelRule = "that a copy is resumed is known although all its chunks are void"
	windowEndsAtInsert modelRule = "the window ends at the snapshot of the last run"
)

// world is one table of one source on its way to shards. big is a column the log carries only when it changes.
type world struct {
	chooser
	without           modelRule
	identity          string // "full", "key" (id and tenant) or "id"
	shards, ids, runs int
	tenants, pages    int

	source map[int]modelRow
	page   map[int]int
	file   int
	log    []modelChange
	stamps int
	left   int // changes the application will still write

	on      []modelShard
	file0   []int // by chunk and shard: the file its rows were read from, -1 while it does not hold them
	forgive int   // positions up to here may be in what was copied
}

type modelRow struct{ id, tenant, a, big int }

// modelChange is a change as the log has it: old is nil where there is no old row, its big is unknown unless the identity
// is full; update: an update, which may have no old row; partial: new lacks big.
type modelChange struct {
	old, new *modelRow
	update   bool
	partial  bool
}

type modelShard struct {
	checkpoint int
	rows       map[int]modelRow
	outbox     map[int]modelRow // by position
}

func (s modelShard) clone() modelShard {
	return modelShard{s.checkpoint, maps.Clone(s.rows), maps.Clone(s.outbox)}
}

const noTenant = -1 // the identity lacks it

var errModel = errors.New("wrong")

func (w *world) wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errModel, fmt.Sprintf(format, args...))
}

func (w *world) place(tenant int) int { return tenant % w.shards }

// maybe writes, as long as the application has something left to write.
func (w *world) maybe(kinds string) {
	if w.left > 0 && w.chance(2) {
		w.left--
		w.write(kinds)
	}
}

// write is one transaction of the application, or a rewrite of the table.
func (w *world) write(kinds string) {
	switch kind := kinds[w.pick(len(kinds))]; kind {
	case 'i':
		row := modelRow{w.pick(w.ids), w.pick(w.tenants), w.stamp(), w.stamp()}
		if _, taken := w.source[row.id]; !taken {
			w.source[row.id], w.page[row.id] = row, w.pick(w.pages)
			w.log = append(w.log, modelChange{new: &row})
		}
	case 'r':
		w.file++
		for _, id := range slices.Sorted(maps.Keys(w.page)) {
			w.page[id] = w.pick(w.pages)
		}
	default:
		ids := slices.Sorted(maps.Keys(w.source))
		if len(ids) > 0 {
			w.change(kind, w.source[ids[w.pick(len(ids))]])
		}
	}
}

// stamp is a value no column has had.
func (w *world) stamp() int { w.stamps++; return w.stamps }

func (w *world) change(kind byte, was modelRow) {
	logged := func(r modelRow) *modelRow {
		if w.identity == "id" {
			r.tenant = noTenant
		}
		return &r
	}
	is := was
	switch kind {
	case 'd':
		delete(w.source, was.id)
		w.log = append(w.log, modelChange{old: logged(was)})
		return
	case 'a':
		is.a = w.stamp()
	case 'b':
		is.big = w.stamp()
	case 't':
		is.tenant = w.pick(w.tenants)
	case 'm':
		is.tenant, is.big = w.pick(w.tenants), w.stamp()
	case 'p':
		is.id = w.pick(w.ids)
		if _, taken := w.source[is.id]; taken {
			return
		}
	}
	delete(w.source, was.id)
	w.source[is.id] = is
	if page, stays := w.page[was.id], w.chance(2); is.id != was.id || !stays {
		w.page[is.id] = w.pick(w.pages)
	} else {
		w.page[is.id] = page
	}
	c := modelChange{new: &is, update: true, partial: is.big == was.big}
	if w.identity == "full" || is.id != was.id || w.identity == "key" && is.tenant != was.tenant {
		c.old = logged(was)
	}
	w.log = append(w.log, c)
}

const allKinds = "iiaabttpmdr"

// copy reads the table in runs that are killed, each under a snapshot of its own, while the application writes.
func (w *world) copy() error {
	chunks := w.pages
	w.file0 = slices.Repeat([]int{-1}, chunks*w.shards)
	w.log = nil
	resumed := false
	for run := 0; slices.Contains(w.file0, -1); run++ {
		snapshot, pages, file, at := maps.Clone(w.source), maps.Clone(w.page), w.file, len(w.log)
		holds := slices.ContainsFunc(w.file0, func(f int) bool { return f >= 0 })
		resumed = holds || resumed && w.without != resumeIsRemembered
		if !resumed { // nothing is held: a new slot
			w.log, at = nil, 0
		}
		for i, f := range w.file0 {
			if f >= 0 && f != file && w.without != fileIsCompared {
				w.file0[i] = -1
			}
		}
		if resumed && slices.Contains(w.file0, -1) && w.without != windowEndsAtInsert {
			w.forgive = at
		}
		for chunk := range chunks {
			for range 2 {
				w.maybe(allKinds)
			}
			if w.file != file {
				if w.without != fileIsCompared {
					break // read again, under a new snapshot
				}
				maps.Copy(pages, w.page)
			}
			for shard := range w.shards {
				i := chunk*w.shards + shard
				if w.file0[i] >= 0 || run < w.runs && w.chance(3) {
					continue
				}
				if err := w.load(shard, chunk, snapshot, pages, resumed); err != nil {
					return err
				}
				w.file0[i] = file
			}
		}
	}
	return nil
}

func (w *world) load(shard, chunk int, snapshot map[int]modelRow, pages map[int]int, resumed bool) error {
	for id, row := range snapshot {
		if pages[id] != chunk || w.place(row.tenant) != shard {
			continue
		}
		if _, there := w.on[shard].rows[id]; there && (!resumed || w.without == readAgainIsUpsert) {
			return w.wrong("row %d is copied twice", id)
		}
		w.on[shard].rows[id] = row
	}
	return nil
}

// run is one whole move; nil when the shards end with the source's rows, each on its own.
func (w *world) run(rows, changes int) error {
	w.source, w.page, w.left = map[int]modelRow{}, map[int]int{}, changes
	for range w.shards {
		w.on = append(w.on, modelShard{rows: map[int]modelRow{}, outbox: map[int]modelRow{}})
	}
	for range rows {
		w.write("i")
	}
	if err := w.copy(); err != nil {
		return err
	}
	for lives := 0; ; lives++ {
		whole, err := w.live(lives < w.runs)
		if err != nil {
			return err
		}
		if whole && w.left == 0 {
			return w.same()
		}
		for ; whole && w.left > 0; w.left-- {
			w.write(allKinds)
		}
	}
}

func (w *world) same() error {
	got := map[int]modelRow{}
	for i, shard := range w.on {
		for id, row := range shard.rows {
			if _, twice := got[id]; twice {
				return w.wrong("row %d is on two shards", id)
			}
			if w.place(row.tenant) != i {
				return w.wrong("row %d is on shard %d", id, i)
			}
			got[id] = row
		}
	}
	if !maps.Equal(got, w.source) {
		return w.wrong("the shards hold %v, the source %v", got, w.source)
	}
	return nil
}

var modelWorlds = map[string]func(chooser, string, modelRule) error{
	"large": func(c chooser, identity string, without modelRule) error {
		w := world{chooser: c, without: without, identity: identity, shards: 3, ids: 8, runs: 4, tenants: 5, pages: 3}
		return w.run(10, 40)
	},
	"small": func(c chooser, identity string, without modelRule) error {
		w := world{chooser: c, without: without, identity: identity, shards: 2, ids: 2, runs: 3, tenants: 2, pages: 2}
		return w.run(2, 8)
	},
}

// modelLong is set by `make model`.
func modelLong() bool { return os.Getenv("MODEL_LONG") != "" }

func modelRuns() int {
	if modelLong() {
		return 200_000
	}
	return 2000
}

// Every way through the smallest world: one row that moves between two shards, or is gone, or comes back.
func TestModelInEveryWay(t *testing.T) {
	t.Parallel()
	changes := 1
	if modelLong() {
		changes = 2
	}
	for _, identity := range []string{"full", "key", "id"} {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			way, ways := &every{}, 0
			for more := true; more; more = way.more() {
				ways++
				w := world{chooser: way, identity: identity, shards: 2, ids: 1, runs: 1, tenants: 2, pages: 2}
				if err := w.run(1, changes); err != nil {
					t.Fatalf("way %v: %v", way.at, err)
				}
			}
			t.Logf("%d ways", ways)
		})
	}
}

// MODEL_SEED replays one run of the right protocol in the large world.
func TestModelOfCopyStreamAndCrash(t *testing.T) {
	t.Parallel()
	for _, identity := range []string{"full", "key", "id"} {
		for world, run := range modelWorlds {
			for _, seed := range pgtest.Seeds(t, "MODEL_SEED", modelRuns()) {
				if err := run(dice{rand.New(rand.NewPCG(seed, 1))}, identity, ""); err != nil {
					t.Fatalf("MODEL_SEED=%d, %s world, identity %s: %v", seed, world, identity, err)
				}
			}
		}
	}
}

// Each rule is needed: left out, some of the runs end wrong.
func TestModelNeedsEachOfItsRules(t *testing.T) {
	t.Parallel()
	for rule, identities := range map[modelRule][]string{
		readAgainIsUpsert: {"full", "key", "id"}, partialIsFetched: {"key", "id"}, fetchMovesEnd: {"key", "id"}, rekeyedIsFetched: {"key", "id"},
		putNowhereElse: {"id"}, fileIsCompared: {"full", "key", "id"}, aheadSkips: {"full", "key", "id"}, outboxKeepsImage: {"key", "id"},
		aheadIsSearched: {"id"}, windowEndsAtInsert: {"full", "key", "id"}, resumeIsRemembered: {"full", "key", "id"},
	} {
		for _, identity := range identities {
			needed(t, rule, func(c chooser) error { return modelWorlds["large"](c, identity, rule) })
		}
	}
}
