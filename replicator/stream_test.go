package replicator

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// Tables of all identities, and each kind of change written to them.
const everythingTables = `
create table plain (id int primary key, note text, big text);
alter table plain alter big set storage external;
create table whole (id int primary key, big text);
alter table whole alter big set storage external;
alter table whole replica identity full;
create table indexed (a int not null, b int);
create unique index by_a on indexed (a);
alter table indexed replica identity using index by_a;
create table mute (id int);
alter table mute replica identity nothing;
create table bare ();
create table parted (id int primary key, v text) partition by range (id);
create table parted_low partition of parted for values from (0) to (10);
create table parted_high partition of parted for values from (10) to (20);
create table unpublished (id int)`

var everythingPublished = []string{"plain", "whole", "indexed", "bare", "parted_low", "parted_high"}

var everythingWritten = []string{
	`insert into plain values (1, null, repeat('x', 5000)), (2, '', 'y')`,
	`update plain set note = 'n' where id = 1`,
	`update plain set id = 3 where id = 1`,
	`delete from plain where id = 2`,
	`insert into whole values (1, repeat('z', 5000)); update whole set id = 2; delete from whole`,
	`insert into indexed values (1, 1); update indexed set b = 2; update indexed set a = 2; delete from indexed`,
	`insert into bare default values`,
	`insert into parted values (1, 'one'); update parted set id = 11; delete from parted`,
	`truncate plain, whole restart identity cascade`,
	`begin; insert into unpublished values (1); select pg_logical_emit_message(true, 'barrier', 'inside'); commit`,
	`insert into unpublished values (2)`,
	`begin; insert into plain values (9, 'lost', ''); rollback`,
	`begin; insert into plain values (10, '', ''); savepoint s; insert into plain values (11, '', ''); rollback to s; commit`,
	`truncate parted_low`,
}

const everythingSeen = `
insert public.plain [1 NULL 5000 bytes]
insert public.plain [2 "" y]
update public.plain [1 n unchanged]
update public.plain key [1 NULL NULL] [3 n unchanged]
delete public.plain key [2 NULL NULL]
insert public.whole [1 5000 bytes]
update public.whole old [1 5000 bytes] [2 unchanged]
delete public.whole old [2 5000 bytes]
insert public.indexed [1 1]
update public.indexed [1 2]
update public.indexed key [1 NULL] [2 2]
delete public.indexed key [2 NULL]
insert public.bare []
insert public.parted_low [1 one]
delete public.parted_low key [1 NULL]
insert public.parted_high [11 one]
delete public.parted_high key [11 NULL]
truncate public.plain public.whole cascade restart
message barrier "inside"
insert public.plain [10 "" ""]
truncate public.parted_low`

var framing = regexp.MustCompile(`(?m)^(begin|commit).*\n?| (at|in) \S+`)

func TestStreamCarriesEveryKindOfChange(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, everythingTables)
	s := publish(t, db, everythingPublished...)
	for _, sql := range everythingWritten {
		db.Exec(t, sql)
	}
	f := follow(t, s.config())
	got, end := f.transactions(12)
	seen := framing.ReplaceAllString(strings.Join(got, "\n"), "")
	if strings.TrimSpace(seen) != strings.TrimSpace(everythingSeen) {
		t.Errorf("got:\n%s\nwant:\n%s", seen, everythingSeen)
	}
	eventually(t, "statistics show the last commit", func() bool {
		stats := f.Stats()
		return stats.Received >= end && stats.ServerEnd >= end && !stats.CommitTime.IsZero() && time.Since(stats.LastMessage) < patience
	})
}

func TestAMessageOutsideTransactionsComesEvenFromARollback(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	s := publish(t, db, "a")
	db.Exec(t, `begin; insert into a values (1); select pg_logical_emit_message(false, 'now', 'content'); rollback`)
	f := follow(t, s.config())
	c := f.next()
	if c.Op != pg.OpMessage || c.Tx != nil || c.Message.Transactional || c.Message.Prefix != "now" ||
		string(c.Message.Content) != "content" || c.Message.LSN < s.start {
		t.Errorf("%s %+v", line(c), c.Message)
	}
}

func TestAnAlteredTableIsDescribedAgainBeforeItsNextRow(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key, v text)`)
	s := publish(t, db, "a")
	db.Exec(t, `insert into a values (1, 'x')`)
	db.Exec(t, `begin; insert into a values (2, 'y'); alter table a add w int default 7; alter table a drop v; insert into a values (3); commit`)
	f := follow(t, s.config())
	var columns []string
	for len(columns) < 3 {
		if c := f.next(); c.Op == pg.OpInsert {
			columns = append(columns, fmt.Sprintf("%d %s %d", len(c.Relation.Columns), c.Relation.Columns[1].Name, len(c.New)))
		}
	}
	if got, want := fmt.Sprint(columns), "[2 v 2 2 v 2 2 w 2]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
