package pgtest

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// rowSQL is how a table's rows are written. Parameters: $1 id, $2 tenant, $3 version, $4 a short text (of a move: the
// new tenant), $5 a text that may be large and that updates leave alone.
type rowSQL struct{ insert, update, remove, move string }

var rowStatements = map[string]rowSQL{
	"users": {
		insert: `insert into users (id, tenant_id, version, email, settings) values ($1, $2, $3, $4, jsonb_build_object('note', $5::text))`,
		update: `update users set email = $4, version = $3 where id = $1 and tenant_id = $2`,
		remove: `delete from users where id = $1 and tenant_id = $2`,
		move:   `update users set tenant_id = $4, version = $3 where id = $1 and tenant_id = $2`,
	},
	"documents": {
		insert: `insert into documents (id, tenant_id, version, title, body) values ($1, $2, $3, $4, $5)`,
		update: `update documents set title = $4, version = $3 where id = $1 and tenant_id = $2`,
		remove: `delete from documents where id = $1 and tenant_id = $2`,
		move:   `update documents set tenant_id = $4, version = $3 where id = $1 and tenant_id = $2`,
	},
	"events": {
		insert: `insert into events (id, tenant_id, version, kind, payload) values ($1, $2, $3, $4, jsonb_build_object('note', $5::text))`,
		update: `update events set kind = $4, version = $3 where id = $1 and tenant_id = $2`,
		remove: `delete from events where id = $1 and tenant_id = $2`,
	},
	"orders": {
		insert: `insert into orders (id, tenant_id, version, status, note) values ($1, $2, $3, $4, $5)`,
		update: `update orders set status = $4, version = $3 where id = $1 and tenant_id = $2`,
		remove: `delete from orders where id = $1 and tenant_id = $2`,
	},
	"tenants": {
		update: `update tenants set name = $4, version = $3 where id = $1 and id = $2`,
	},
}

const (
	insertItem = `insert into order_items (order_id, line, version, amount) values ($1, $2, $3, $3::bigint * 0.5)`
	updateItem = `update order_items set version = $3, amount = $3::bigint * 0.5 where order_id = $1 and line = $2`
	removeItem = `delete from order_items where order_id = $1 and line = $2`
)

// mustTouch runs a statement that changes exactly one of the writer's own rows.
func mustTouch(ctx context.Context, tx pgx.Tx, table string, id int64, sql string, args ...any) error {
	tag, err := tx.Exec(ctx, sql, args...)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%w: %s %d (%d rows touched)", errNotFound, table, id, tag.RowsAffected())
	}
	return err
}

// tenantKey is a tenant as a table's column holds it.
func tenantKey(table string, tenant int64) any {
	if table == "events" {
		return EventTenant(tenant)
	}
	return tenant
}

// choose makes the next transaction: one table's row, sometimes with one of another table beside it.
func (w *writer) choose(ctx context.Context) *transaction {
	if w.load.o.NewTenants && w.random.IntN(60) == 0 {
		return w.newTenant(ctx)
	}
	tables := []string{"users", "documents", "events"}
	if !w.load.ledger.omni["tenants"] && w.random.IntN(20) == 0 {
		tables = []string{"tenants"}
	} else if w.load.o.Lookups {
		tables = append(tables, "orders", "orders")
	}
	t := w.change(tables[w.random.IntN(len(tables))])
	if t.table == "users" && t.move == 0 && w.random.IntN(4) == 0 {
		t = t.and(w.insert("documents", t.tenant))
	}
	t.rollback = w.random.IntN(12) == 0
	return t
}

// change inserts, updates, deletes or moves a row of a table.
func (w *writer) change(table string) *transaction {
	rows := w.rows[table]
	dice := w.random.IntN(100)
	if table == "tenants" && len(rows) == 0 {
		return w.change("users")
	}
	if len(rows) == 0 || dice < 35 && table != "tenants" {
		return w.insert(table, w.anyTenant())
	}
	row := rows[w.random.IntN(len(rows))]
	switch {
	case dice < 55 && table != "tenants":
		return w.remove(table, row)
	case dice < 75 && w.load.o.KeyChanges && rowStatements[table].move != "":
		return w.move(table, row)
	}
	return w.update(table, row)
}

// anyTenant is one of those every writer uses, or a new one of its own.
func (w *writer) anyTenant() int64 {
	own := len(w.tenants)
	if n := w.random.IntN(w.load.o.Tenants + own); n >= w.load.o.Tenants {
		return w.tenants[n-w.load.o.Tenants]
	} else {
		return int64(n) + 1
	}
}

// replace is the transaction that turns old into new; nil stands for no row.
func (w *writer) replace(table string, old, new *liveRow) *transaction {
	t := &transaction{table: table}
	forget := func() { w.rows[table] = slices.DeleteFunc(w.rows[table], func(r *liveRow) bool { return r == old }) }
	t.abandoned = forget
	t.committed = func() {
		if old == nil {
			w.rows[table] = append(w.rows[table], new)
		} else if new == nil {
			forget()
		} else {
			*old = *new
		}
	}
	switch {
	case old == nil:
		t.tenant, t.effects = new.tenant, new.effects(table)
	case new == nil:
		gone := liveRow{id: old.id, items: make([]state, len(old.items))}
		t.tenant, t.effects = old.tenant, gone.effects(table)
	default:
		t.tenant, t.effects = old.tenant, new.effects(table)
	}
	return t
}

func (w *writer) insert(table string, tenant int64) *transaction {
	row := &liveRow{id: w.newID(), tenant: tenant, version: 1}
	if table == "orders" {
		row.items = make([]state, 1+w.random.IntN(4))
		for i := range row.items {
			row.items[i] = 1
		}
	}
	text, savepoint := w.text(), w.random.IntN(10) == 0
	t := w.replace(table, nil, row)
	t.run = func(ctx context.Context, tx pgx.Tx) error {
		err := mustTouch(ctx, tx, table, row.id, rowStatements[table].insert, row.id, tenantKey(table, tenant), row.version, "new", text)
		for i := range row.items {
			if err == nil {
				_, err = tx.Exec(ctx, insertItem, row.id, i+1, row.items[i])
			}
		}
		if err == nil && savepoint && len(row.items) > 0 {
			err = undoneItem(ctx, tx, row.id)
		}
		return err
	}
	return t
}

// undoneItem inserts a line and takes it back by a savepoint.
func undoneItem(ctx context.Context, tx pgx.Tx, order int64) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := inner.Exec(ctx, insertItem, order, 999, 1); err != nil {
		return err
	}
	return inner.Rollback(ctx)
}

func (w *writer) update(table string, row *liveRow) *transaction {
	next := *row
	next.version++
	next.items = slices.Clone(row.items)
	line := -1
	if len(next.items) > 0 {
		line = w.random.IntN(len(next.items))
		if next.items[line] != absent && w.random.IntN(4) == 0 {
			next.items[line] = absent
		} else {
			next.items[line] = next.version
		}
	}
	was := slices.Clone(row.items)
	t := w.replace(table, row, &next)
	t.run = func(ctx context.Context, tx pgx.Tx) error {
		err := mustTouch(ctx, tx, table, next.id, rowStatements[table].update, next.id, tenantKey(table, next.tenant), next.version, fmt.Sprintf("changed to %d", next.version))
		if err != nil || line < 0 {
			return err
		}
		switch {
		case next.items[line] == absent:
			return mustTouch(ctx, tx, "item of order", next.id, removeItem, next.id, line+1)
		case was[line] == absent:
			return mustTouch(ctx, tx, "item of order", next.id, insertItem, next.id, line+1, next.items[line])
		}
		return mustTouch(ctx, tx, "item of order", next.id, updateItem, next.id, line+1, next.items[line])
	}
	return t
}

func (w *writer) remove(table string, row *liveRow) *transaction {
	t := w.replace(table, row, nil)
	id, tenant := row.id, row.tenant
	t.run = func(ctx context.Context, tx pgx.Tx) error {
		return mustTouch(ctx, tx, table, id, rowStatements[table].remove, id, tenantKey(table, tenant))
	}
	return t
}

// move gives a row to another tenant, where that one is on the same shard.
func (w *writer) move(table string, row *liveRow) *transaction {
	next := *row
	next.version++
	next.tenant = w.anyTenant()
	t := w.replace(table, row, &next)
	old := row.tenant
	t.move = next.tenant
	t.run = func(ctx context.Context, tx pgx.Tx) error {
		return mustTouch(ctx, tx, table, next.id, rowStatements[table].move, next.id, old, next.version, next.tenant)
	}
	return t
}

// and makes one transaction of two, both for one tenant.
func (t *transaction) and(other *transaction) *transaction {
	return &transaction{
		table: t.table, tenant: t.tenant, move: t.move, effects: slices.Concat(t.effects, other.effects),
		run: func(ctx context.Context, tx pgx.Tx) error {
			if err := t.run(ctx, tx); err != nil {
				return err
			}
			return other.run(ctx, tx)
		},
		committed: func() { t.committed(); other.committed() },
		abandoned: func() { t.abandoned(); other.abandoned() },
	}
}
