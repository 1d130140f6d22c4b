package move_test

import (
	"testing"

	"pgreshard/pgtest"
)

// A shard that is lost while pg_restore makes something there is tried again, as anywhere else.
func TestAShardLostWhileItsSchemaIsRestoredIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"tables": "CREATE TABLE", "indexes": "CREATE INDEX"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 1, "tenant", `create table notes (id int primary key, tenant int, note text); create index notes_note on notes (note);
				insert into notes select g, g % 5, 'note ' || g from generate_series(1, 100) g`)
			relay := pgtest.NewRelay(t, s.shards[0].Cluster.Addr())
			s.config.Destination.Shards[0] = s.shards[0].Via(relay).Shard(0)
			cut := relay.Add(pgtest.Rule{Direction: pgtest.ToServer, Contains: text, Where: pgtest.Inside, Do: pgtest.Reset})
			s.run(func() { s.sources[0].Exec(t, `update notes set note = 'changed' where id = 1`) })
			select {
			case <-cut:
			default:
				t.Error("nothing was cut")
			}
			s.same("notes", "id")
			if got := s.shards[0].Query(t, `select count(*) from pg_index where indrelid = 'notes'::regclass and indisvalid`); got[0][0] != "2" {
				t.Errorf("%s indexes", got[0][0])
			}
		})
	}
}
