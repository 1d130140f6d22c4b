package pgtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The writes of omnisharded tables may be repeated on a shard that has them already.
const (
	putCountry    = `insert into countries (code, name, version) values ($1, $2, $3) on conflict (code) do update set name = excluded.name, version = excluded.version`
	removeCountry = `delete from countries where code = $1`
	putTenant     = `insert into tenants (id, parent_tenant_id, name, version) values ($1, nullif($2::bigint, $1), $3, $4) on conflict (id) do update set name = excluded.name, version = excluded.version`
)

// reference writes one row of an omnisharded table on every shard of the layout that serves.
func (w *writer) reference(ctx context.Context) error {
	if w.load.ledger.omni["tenants"] && w.random.IntN(2) == 0 && len(w.rows["tenants"]) > 0 {
		row := w.rows["tenants"][w.random.IntN(len(w.rows["tenants"]))]
		return w.everywhere(ctx, "tenants", row, row.version+1)
	}
	if len(w.rows["countries"]) == 0 {
		return nil
	}
	row := w.rows["countries"][w.random.IntN(len(w.rows["countries"]))]
	if row.version != absent && w.random.IntN(6) == 0 {
		return w.everywhere(ctx, "countries", row, absent)
	}
	row.serial++
	return w.everywhere(ctx, "countries", row, row.serial+1)
}

// everywhere repeats until every shard has acknowledged the new state. Once begun it does not stop with ctx, because
// shards that differ would be left.
func (w *writer) everywhere(ctx context.Context, table string, row *liveRow, to state) error {
	next := *row
	next.version = to
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionMost)
	defer cancel()
	for {
		err := w.onAll(ctx, table, &next)
		switch {
		case err == nil:
			w.load.ledger.acknowledge(next.effects(table))
			w.stats.commit()
			*row = next
			return nil
		case ctx.Err() != nil:
			w.load.ledger.doubt(next.effects(table))
			w.stats.count(&w.stats.Unknown)
			w.forget(table, row)
			return nil
		case !w.again(err) && !errors.Is(err, errNoAddress):
			return err
		}
		w.stats.count(&w.stats.Retries)
		sleep(ctx, retryPause)
	}
}

// errNoAddress says that the layout could not tell its shards just now.
var errNoAddress = errors.New("the shards are not known")

const shardMost = 10 * time.Second

func (w *writer) onAll(ctx context.Context, table string, row *liveRow) error {
	urls, err := w.load.o.All(ctx)
	if err != nil {
		return errors.Join(errNoAddress, err)
	}
	ctx, cancel := context.WithTimeout(ctx, shardMost)
	defer cancel()
	for _, url := range urls {
		conn, err := w.connect(ctx, url)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("version %d", row.version)
		switch {
		case table == "tenants":
			_, err = conn.Exec(ctx, putTenant, row.id, RootTenant(row.id), name, row.version)
		case row.version == absent:
			_, err = conn.Exec(ctx, removeCountry, row.code)
		default:
			_, err = conn.Exec(ctx, putCountry, row.code, name, row.version)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errSkip says that a transaction makes no sense under the layout that serves by now.
var errSkip = errors.New("not under this layout")

// newTenant makes a tenant: on a single shard in one transaction with the first rows that belong to it, which come
// before it or after it; on several, where tenants are omnisharded, on its own.
func (w *writer) newTenant(ctx context.Context) *transaction {
	id := w.newID()
	tenant := &liveRow{id: id, tenant: id, version: 1}
	own := func() {
		w.rows["tenants"] = append(w.rows["tenants"], tenant)
		w.tenants = append(w.tenants, id)
	}
	if urls, err := w.load.o.All(ctx); err != nil || len(urls) != 1 {
		if w.load.ledger.omni["tenants"] && w.everywhere(ctx, "tenants", tenant, 1) == nil {
			own()
		}
		return nil
	}
	put := &transaction{
		table: "tenants", tenant: id, effects: tenant.effects("tenants"), committed: own, abandoned: func() {},
		run: func(ctx context.Context, tx pgx.Tx) error {
			if urls, err := w.load.o.All(ctx); err != nil || len(urls) != 1 {
				return errSkip
			}
			_, err := tx.Exec(ctx, putTenant, id, RootTenant(id), "new", tenant.version)
			return err
		},
	}
	first := w.insert("users", id)
	if w.load.o.Lookups {
		first = first.and(w.insert("orders", id))
	}
	if w.random.IntN(2) == 0 {
		return put.and(first)
	}
	t := first.and(put)
	t.table = "tenants"
	return t
}

// forget takes a row out of those the writer uses.
func (w *writer) forget(table string, row *liveRow) { w.replace(table, row, nil).abandoned() }
