package move_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// changesRig is a move under writers, held before its cutover, with rows of no writer beside theirs: in notes, which is as large as a table
// must be for a server to read it by its index, in orders and in countries.
func changesRig(t *testing.T, shards int) (*rig, *held, func()) {
	r := newRig(t, 1, shards, pgtest.WorkloadOptions{Writers: 4, Rate: 150, Lookups: true, KeyChanges: true, NewTenants: true})
	r.config.Destination.Spec.Tables = append(r.config.Destination.Spec.Tables, noteRule)
	r.sources[0].Exec(t, `create table notes (id bigint primary key, tenant_id bigint not null, note text not null);
		insert into notes select g, g % 50, repeat(md5(g::text), 10) from generate_series(1, 6000) g; analyze notes;
		insert into countries values ('ZZ', 'of no writer', 1);
		insert into orders (id, tenant_id, status, version) select 5000000 + id, id, 'of no writer', 1 from tenants order by id limit 20;
		insert into order_items select id, 1, 10, 1 from orders where id > 5000000`)
	stop := r.write()
	return r, r.hold(t.Context(), r.move()), stop
}

// beforeFreeze has the next cutover do something when everything was compared and nothing is frozen yet.
func (h *held) beforeFreeze(act func()) {
	h.BeforeStep(func(step string) {
		if step == "freeze" {
			h.BeforeStep(nil)
			act()
		}
	})
}

// with is the shard that has a row of a table, and one that has not.
func (r *rig) with(sql string) (has, lacks *pgtest.DB) {
	r.t.Helper()
	for n, db := range r.shards {
		if len(db.Query(r.t, sql)) > 0 {
			return db, r.shards[(n+1)%len(r.shards)]
		}
	}
	r.t.Fatalf("no shard has %s", sql)
	return nil, nil
}

// What is changed once everything was compared is found in the freeze by whoever changed it, exactly it, and of what writers change
// nothing; what was changed before is found before anything is frozen.
func TestTheFreezeFindsWhatWasChangedSinceTheComparison(t *testing.T) {
	t.Parallel()
	r, m, stop := changesRig(t, 3)
	notes, without := r.with(`select from notes where id = 77`)
	orders, _ := r.with(`select from orders where id = (select min(id) from orders where id > 5000000)`)
	id := orders.Query(t, `select min(id) from orders where id > 5000000`)[0][0]
	copyOf := notes.Query(t, `select tenant_id, note from notes where id = 77`)[0]
	source := r.sources[0].Conn(t)
	replica := func(sql string) {
		t.Helper()
		if _, err := source.Exec(t.Context(), `set session_replication_role = replica; `+sql+`; set session_replication_role = origin`); err != nil {
			t.Error(err)
		}
	}
	comes := func(db *pgtest.DB, sql string) {
		t.Helper()
		for len(db.Query(t, sql)) == 0 && t.Context().Err() == nil {
		}
	}
	for _, kind := range []struct {
		name  string
		harm  func()
		finds string // empty: nothing
		mend  func()
	}{
		{"nothing", func() {}, "", func() {}},
		{"a row of a shard", func() { behindItsBack(t, notes, `update notes set note = 'harmed' where id = 77`) },
			"public.notes: differs, 0 missing, 0 extra, 1 different, 0 doubled, 0 misplaced",
			func() { behindItsBack(t, notes, `update notes set note = $1 where id = 77`, copyOf[1]) }},
		{"a row of a shard, gone", func() { behindItsBack(t, orders, `delete from order_items where order_id = `+id) },
			"public.order_items: differs, 1 missing, 0 extra, 0 different, 0 doubled, 0 misplaced",
			func() { behindItsBack(t, orders, `insert into order_items values ($1, 1, 10, 1)`, id) }},
		{"a row of two shards", func() { behindItsBack(t, without, `insert into notes values (77, $1, $2)`, copyOf[0], copyOf[1]) },
			"public.notes: differs, 0 missing, 0 extra, 0 different, 1 doubled, 1 misplaced",
			func() { behindItsBack(t, without, `delete from notes where id = 77`) }},
		{"a key of a shard's row", func() { behindItsBack(t, notes, `update notes set id = -77 where id = 77`) },
			"public.notes: differs, 1 missing, 1 extra, 0 different, 0 doubled, 0 misplaced",
			func() { behindItsBack(t, notes, `update notes set id = 77 where id = -77`) }},
		{"a row that comes and goes, and one that goes and comes", func() {
			behindItsBack(t, notes, `insert into notes values (-1, 1, 'x')`)
			behindItsBack(t, notes, `delete from notes where id = -1`)
			behindItsBack(t, notes, `delete from notes where id = 77`)
			behindItsBack(t, notes, `insert into notes values (77, $1, $2)`, copyOf[0], copyOf[1])
		}, "", func() {}},
		{"a row of the source in replica role, which the stream brings", func() { replica(`update notes set note = 'new' where id = 77`) }, "",
			func() { copyOf[1] = "new" }},
		{"a row of the source in replica role, put back on the shard", func() {
			replica(`update notes set note = 'newer' where id = 77`)
			comes(notes, `select from notes where id = 77 and note = 'newer'`)
			behindItsBack(t, notes, `update notes set note = 'new' where id = 77`)
		}, "public.notes: differs, 0 missing, 0 extra, 1 different, 0 doubled, 0 misplaced",
			func() { behindItsBack(t, notes, `update notes set note = 'newer' where id = 77`) }},
		{"a copy, truncated", func() {
			stop() // the stream would end at a change of a row that is not there
			without.Exec(t, `set session_replication_role = replica; create table kept as select * from countries; truncate countries`)
		}, "public.countries: differs, [1-9][0-9]* missing, 0 extra, 0 different, 0 doubled, 0 misplaced",
			func() {
				without.Exec(t, `set session_replication_role = replica; insert into countries select * from kept; drop table kept`)
				stop = r.write()
			}},
		{"a copy, rewritten", func() {
			without.Exec(t, `alter table countries alter name type text using case code when 'ZZ' then 'x' else name end`)
		}, "public.countries: differs, 0 missing, 0 extra, 1 different, 0 doubled, 0 misplaced",
			func() {
				without.Exec(t, `alter table countries alter name type text using case code when 'ZZ' then 'of no writer' else name end`)
			}},
		{"the source, truncated", func() { r.sources[0].Exec(t, `truncate notes`) }, "", func() {}},
	} {
		frozen := false
		m.beforeFreeze(func() { frozen = true; kind.harm() })
		_, err := m.Cutover(t.Context(), move.CutoverOptions{Rehearse: true})
		var undone *move.UndoneError
		var differs *move.DifferenceError
		switch errors.As(err, &differs); {
		case !frozen:
			t.Fatalf("%s: nothing was frozen: %v", kind.name, err)
		case kind.finds == "" && err != nil:
			t.Errorf("%s: %v", kind.name, err)
		case kind.finds != "" && (differs == nil || !regexp.MustCompile("^"+kind.finds+"$").MatchString(differs.Detail) || !errors.As(err, &undone) || undone.Step != "verify"):
			t.Errorf("%s: %v", kind.name, err)
		}
		kind.mend()
		if report, err := m.VerifyNow(t.Context()); err != nil || !report.Clean() {
			t.Fatalf("%s, mended: %+v, %v", kind.name, report, err)
		}
	}

	behindItsBack(t, orders, `update orders set status = 'harmed' where id = $1`, id)
	m.beforeFreeze(func() { t.Error("a freeze began although a row differs") })
	var differs *move.DifferenceError
	if _, err := m.Cutover(t.Context(), move.CutoverOptions{Rehearse: true}); !errors.As(err, &differs) || !slices.Equal(differs.Tables, []string{"public.orders"}) {
		t.Errorf("a row that differed before: %v", err)
	}
	m.BeforeStep(nil)
	behindItsBack(t, orders, `update orders set status = 'of no writer' where id = $1`, id)
	if report, err := m.VerifyNow(t.Context()); err != nil || !report.Clean() {
		t.Fatalf("mended: %+v, %v", report, err)
	}
	if err := m.goOn(); err != nil {
		t.Fatal(err)
	}
	stop()
	r.noSlots("")
	undone := move.EvidenceRefusal{Step: "verify", Why: "differences were found in public.notes"}
	found := 0
	for _, refusal := range r.proven(m.Move).Refusals {
		if refusal.At = (time.Time{}); refusal == undone {
			found++
		}
	}
	if found != 4 {
		t.Errorf("%d cutovers that were undone for a row of notes are in the report", found)
	}
	r.wentWell()
}

// wentWell compares the writers' rows with what they were told, and the others' on both sides.
func (r *rig) wentWell() {
	r.t.Helper()
	r.sameNotes()
	for _, db := range r.shards {
		db.Exec(r.t, `delete from order_items where order_id > 5000000; delete from orders where id > 5000000; delete from countries where code = 'ZZ'`)
	}
	if err := r.load.Ledger().Check(r.t.Context(), r.conns(r.shards)...); err != nil {
		r.t.Error(err)
	}
	r.placed()
}

// sameNotes compares notes, of which the application knows nothing, by plain SQL.
func (r *rig) sameNotes() {
	r.t.Helper()
	var sides [2][][]string
	for side, dbs := range [][]*pgtest.DB{r.sources, r.shards} {
		for _, db := range dbs {
			sides[side] = append(sides[side], db.Query(r.t, `select id, tenant_id, note from notes`)...)
		}
		slices.SortFunc(sides[side], slices.Compare)
	}
	if !slices.EqualFunc(sides[0], sides[1], slices.Equal) {
		r.t.Errorf("notes differ: %d rows and %d", len(sides[0]), len(sides[1]))
	}
}

// noSlots looks for slots and publications of a move that have a word in their names.
func (r *rig) noSlots(word string) {
	r.t.Helper()
	for _, db := range append(slices.Clone(r.shards), r.sources...) {
		left := db.Query(r.t, `select slot_name from pg_replication_slots where database = current_database() and strpos(slot_name, $1) > 0
			union select pubname from pg_publication where strpos(pubname, $1) > 0`, word)
		if len(left) > 0 {
			r.t.Errorf("left on %s: %v", db.Name, left)
		}
	}
}

// The comparison in the freeze reads rows that have changed, by their keys, and no table whole.
func TestTheFreezeReadsOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	r, m, stop := changesRig(t, 2)
	all := append(slices.Clone(r.shards), r.sources...)
	read := func() (seq, idx []string) { // once those who have read have said so
		ended := m.EndSpares()
		for _, db := range all {
			for len(db.Query(t, `select from pg_stat_activity where pid = any($1)`, ended)) > 0 && t.Context().Err() == nil {
			}
			row := db.Query(t, `select seq_scan, idx_scan from pg_stat_user_tables where relname = 'notes'`)[0]
			seq, idx = append(seq, row[0]), append(idx, row[1])
		}
		return seq, idx
	}
	var seq, idx [2][]string
	var compared move.VerifyStatus
	m.BeforeStep(func(step string) {
		switch step {
		case "freeze":
			r.sources[0].Exec(t, `update notes set note = note || '!' where id in (7, 8, 9)`)
			for len(r.shards[0].Query(t, `select from notes where note like '%!'`))+len(r.shards[1].Query(t, `select from notes where note like '%!'`)) < 3 {
			}
			seq[0], idx[0] = read()
		case "seal":
			compared = m.Snapshot().Verify
			seq[1], idx[1] = read()
		}
	})
	if err := m.goOn(); err != nil {
		t.Fatal(err)
	}
	stop()
	if !slices.Equal(seq[0], seq[1]) || slices.Equal(idx[0], idx[1]) {
		t.Errorf("whole scans of notes: %v before, %v after; through its index: %v, %v", seq[0], seq[1], idx[0], idx[1])
	}
	if whole := strings.Join(compared.Whole, "; "); compared.State != "clean" || compared.Rows < 6000 || compared.Changed < 3 || compared.Changed > 3000 ||
		whole != "public.events: it has no key" {
		t.Errorf("%+v", compared)
	}
	r.wentWell()
}

// Whatever ends a cutover, no slot of the comparison is left, nor a publication; where what changes cannot be followed, the freeze
// finds the same by comparing everything, and says why.
func TestTheFreezeComparesEverythingWhereItMust(t *testing.T) {
	t.Parallel()
	r, m, stop := changesRig(t, 2)
	notes, _ := r.with(`select from notes where id = 77`)
	harm := func() { behindItsBack(t, notes, `update notes set note = reverse(note) where id = 77`) }
	finds := func(whole string) {
		t.Helper()
		_, err := m.Cutover(t.Context(), move.CutoverOptions{})
		var differs *move.DifferenceError
		if !errors.As(err, &differs) || differs.Detail != "public.notes: differs, 0 missing, 0 extra, 1 different, 0 doubled, 0 misplaced" {
			t.Errorf("%v", err)
		}
		if got := m.Snapshot().Verify.Whole; !strings.Contains(strings.Join(got, "; "), whole) {
			t.Errorf("compared whole: %q", got)
		}
		harm()
		if report, err := m.VerifyNow(t.Context()); err != nil || !report.Clean() {
			t.Fatalf("mended: %+v, %v", report, err)
		}
	}
	made := ""
	m.beforeFreeze(func() {
		for _, db := range append(slices.Clone(r.shards), r.sources...) {
			made += db.Query(t, `select count(*) from pg_replication_slots where database = current_database() and not temporary and strpos(slot_name, '_seen_') > 0`)[0][0]
		}
		harm()
	})
	finds("public.events: it has no key")
	if made != "111" {
		t.Errorf("slots by node: %s", made)
	}

	m.beforeFreeze(func() { // as a server would that goes away and comes back
		notes.Exec(t, `select pg_terminate_backend(active_pid) from pg_replication_slots where database = current_database() and strpos(slot_name, '_seen_') > 0`)
		harm()
	})
	finds("public.notes: what changed is not known: ")
	m.BoundChanges(64 << 10)
	m.beforeFreeze(func() { // more keys than may be kept
		r.sources[0].Exec(t, `update notes set note = note || '!' where id > 5000`)
		harm()
	})
	finds("public.notes: more than 64 kB of keys changed since it was compared")
	m.BoundChanges(0)
	m.EndAccount(t.Context())
	r.noSlots("seen")

	theirs := "pgreshard_" + r.config.Name + "_seen_d1"
	r.shards[1].Exec(t, "create publication "+theirs)
	m.beforeFreeze(harm)
	finds("public.notes: what changed is not known: create publication " + theirs)
	if left := r.shards[1].Query(t, `select from pg_publication where pubname = $1`, theirs); len(left) != 1 {
		t.Error("somebody else's publication is gone")
	}
	r.shards[1].Exec(t, "drop publication "+theirs)

	if err := m.goOn(); err != nil {
		t.Fatal(err)
	}
	stop()
	r.noSlots("")
	r.wentWell()
}
