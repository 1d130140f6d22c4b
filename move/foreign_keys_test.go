package move_test

import (
	"fmt"
	"testing"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// A foreign key whose rows come to be on two shards cannot hold there. The rows are moved all the same, the key stays
// NOT VALID on the shards where it is broken, and every other key is validated.
func TestAForeignKeyAcrossShardsStaysNotValidAndAloneSo(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, pgtest.WorkloadOptions{Writers: 1})
	r.config.Destination.Spec.Tables = append(r.config.Destination.Spec.Tables, noteRule)
	r.sources[0].Exec(t, `
		insert into orders (id, tenant_id, status, version) values (9001, 1, '', 1), (9002, 2, '', 1), (9003, 3, '', 1), (9004, 4, '', 1);
		create table notes (id bigint primary key, tenant_id bigint not null, order_id bigint constraint across references orders,
			author bigint constraint within references notes);
		insert into notes select g, g % 4 + 1, 9001 + g / 4 % 4, g from generate_series(0, 15) g`)
	if err := r.move().Migrate(t.Context(), move.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pgtest.SameRows(t.Context(), r.conns(r.sources), r.conns(r.shards), "notes", pgtest.RowsOptions{}); err != nil {
		t.Error(err)
	}
	for n, db := range r.shards {
		if got := db.Query(t, `select conname, convalidated from pg_constraint where contype = 'f' and conrelid = 'notes'::regclass order by 1`); fmt.Sprint(got) != "[[across f] [within t]]" {
			t.Errorf("shard %d: %v", n, got)
		}
		if got := db.Query(t, `select count(*) from pg_constraint where contype = 'f' and not convalidated`); got[0][0] != "1" {
			t.Errorf("shard %d: %s keys are not validated", n, got[0][0])
		}
	}
}
