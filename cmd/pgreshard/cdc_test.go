package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pgreshard/notice"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

const publishedSchema = `
create table items (id bigint primary key, flag boolean, amount numeric, note text, body text); alter table items alter body set storage external;
create table log (line text, n int); alter table log replica identity full;
create table parted (id int, part int, note text, primary key (id, part)) partition by list (part);
create table parted_1 partition of parted for values in (1); create table parted_2 partition of parted for values in (2);
create table "odd.Näme *" ("a "" b" int primary key, v jsonb);
insert into items select g, g % 2 = 0, g / 7.0, 'old ' || g, repeat('x', 20000) from generate_series(1, 60) g;
insert into log select 'twice', g / 2 from generate_series(1, 40) g;
insert into parted select g, 1 + g % 2, 'old' from generate_series(1, 40) g;
insert into "odd.Näme *" values (1, '{"a": [1, 2.50, null]}')`

// published are the tables, as SQL names them.
var published = []string{"items", "log", "parted", `"odd.Näme *"`}

// disturb does one random thing.
func disturb(random *rand.Rand, n int) string {
	id := 1 + random.IntN(80)
	return []string{
		fmt.Sprintf(`insert into items values (%d, null, 1e-40, E'\\"\n\t' || chr(8232), repeat('y', 30000))`, 1000+n),
		fmt.Sprintf(`update items set note = 'changed %d', flag = not flag where id %% 7 = %d`, n, id%7),
		fmt.Sprintf(`update items set id = -id where id in (%d, %d)`, id, id+1),
		fmt.Sprintf(`delete from items where id = %d; update items set body = null where id = %d`, id, id+2),
		fmt.Sprintf(`insert into log values ('twice', %d), ('twice', %d); update log set n = n + 1 where ctid = (select min(ctid) from log)`, id, id),
		`delete from log where ctid = (select max(ctid) from log)`,
		fmt.Sprintf(`begin; insert into parted values (%d, 1, 'new'); update parted set part = 3 - part where id %% 5 = %d; commit`, 1000+n, id%5),
		`truncate parted_2`,
		fmt.Sprintf(`begin; delete from log; insert into log select 'many', g from generate_series(1, 300) g; savepoint a; delete from items; rollback to a; insert into "odd.Näme *" values (%d, '"x"'); commit`, 1000+n),
		`begin; truncate log, items; rollback`,
		fmt.Sprintf(`update items set body = repeat('large', 700000) where id = (select min(id) from items where id > %d)`, id),
	}[random.IntN(11)]
}

// Without a destination changes are published and nothing is moved. The worker is killed again and again; the stream has each
// change once, in its order, also one larger than a message.
func TestAPublisherKilledAtRandomPublishesEachChangeOnce(t *testing.T) {
	t.Parallel()
	server, err := notice.Serve(t.TempDir(), "nats://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, publishedSchema)
	name, seed := "publish-"+db.Name[strings.LastIndexByte(db.Name, '_')+1:], pgtest.Seeds(t, "CDC_SEED", 1)[0]
	t.Logf("CDC_SEED=%d", seed)
	file, env := filepath.Join(t.TempDir(), "pgreshard.toml"), []string{stateVariable + "=" + t.TempDir()}
	text := fmt.Sprintf("[move]\nname = %q\n[http]\nlisten = %q\n[source]\ndatabase = \"app\"\nlayout = 1\n[[source.shards]]\nurl = %q\n[nats]\nurl = %q\n[cdc]\nenabled = true\n",
		name, freePort(t), db.URL(), server.Address())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (int, string) {
		return start(t, env, append([]string{"-c", file}, args...)...).wait(t)
	}
	if code, said := run("plan"); code != exitDone || !strings.Contains(said, "pgreshard serve publishes the changes") || !strings.Contains(said, "\npublic.parted ") {
		t.Fatalf("plan: %d\n%s", code, said)
	}
	untouched(t, db)
	if code, said := run("migrate", "--yes"); code != exitUsage || !strings.Contains(said, "there is no [destination]") {
		t.Fatalf("migrate: %d\n%s", code, said)
	}

	conn, err := notice.Connect(server.Address(), nil, "consumer")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, consumer := "PGRESHARD_"+strings.ToUpper(name), pgtest.NewConsumer()
	ctx, cancel := context.WithCancel(t.Context())
	var consuming sync.WaitGroup
	consuming.Go(func() { consumer.Follow(ctx, conn, stream) })
	defer consuming.Wait()
	defer cancel()

	random := rand.New(rand.NewPCG(seed, 1))
	writer := db.Conn(t)
	for life := range 5 {
		before := messages(t, conn, stream)
		worker := start(t, env, "-c", file, "serve")
		for n := range 20 + random.IntN(40) {
			sql := disturb(random, 100*life+n)
			_, err := writer.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
			for pg.Code(err) == "40P01" { // it truncates, and the copy of what is there reads
				if _, err := writer.Exec(t.Context(), "rollback"); err != nil {
					t.Fatal(err)
				}
				_, err = writer.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if life < 4 {
			awaitMessages(t, conn, stream, worker, before+uint64(random.IntN(100)))
			worker.kill()
			continue
		}
		publishes := func() bool {
			code, said := run("status", "--json")
			return code == exitDone && strings.Contains(said, `"state":"changes"`)
		}
		for !publishes() {
			worker.alive(t)
		}
		at := db.Query(t, `select pg_logical_emit_message(true, 'test', '')`)[0][0]
		for db.Query(t, `select exists (select from pg_replication_slots where database = current_database() and confirmed_flush_lsn >= $1::pg_lsn)`, at)[0][0] != "t" {
			worker.alive(t)
		}
		if code, said := run("status"); code != exitDone || !strings.Contains(said, "which publishes the changes of layout 1\n") || !strings.Contains(said, "\ncdc:    layout 1 shard 0 to "+stream+": ") {
			t.Errorf("status: %d\n%s", code, said)
		}
		if code, said := run("cutover"); code != exitUsage || !strings.Contains(said, "there is no [destination]") {
			t.Errorf("cutover: %d\n%s", code, said)
		}
		worker.kill()
	}
	last := messages(t, conn, stream)
	for consumer.Applied() < last {
		pause(t.Context())
	}
	cancel()
	consuming.Wait()
	consumer.Right(t)
	scratch := pgtest.Shared(t).Database(t)
	scratch.Exec(t, publishedSchema+`; truncate items, log, parted, "odd.Näme *"`)
	consumer.Fill(t, scratch)
	for _, table := range published {
		if err := pgtest.SameRows(t.Context(), []*pgx.Conn{writer}, []*pgx.Conn{scratch.Conn(t)}, table, pgtest.RowsOptions{}); err != nil {
			t.Error(err)
		}
	}
	if code, said := run("cancel"); code != exitDone {
		t.Errorf("cancel: %d\n%s", code, said)
	}
	untouched(t, db)
}

// messages is how many a stream has got; 0 where there is none yet.
func messages(t *testing.T, conn *nats.Conn, name string) uint64 {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.LastSeq
}

func awaitMessages(t *testing.T, conn *nats.Conn, name string, worker *process, n uint64) {
	t.Helper()
	for began := time.Now(); messages(t, conn, name) < n && time.Since(began) < 10*time.Second; { // fewer may be to come
		worker.alive(t)
	}
}

// alive fails where the process has ended.
func (p *process) alive(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
		t.Fatalf("the worker ended with %d:\n%s", p.code, p.both.String())
	default:
		pause(t.Context())
	}
}
