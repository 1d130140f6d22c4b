package pgtest

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// FillSizes are rows per tenant that are there before writers begin.
type FillSizes struct {
	Users, Orders, Items, Documents, Events int // Items is per order
	Countries                               int // in all
}

// fillBig is 20 kB of text that does not compress, a function of t and g.
const fillBig = `(select string_agg(md5(t || '/' || g || '/' || i), '') from generate_series(1, 640) i)`

// fillRows make $2 rows for each tenant of $1; ids are (($2 × (t − 1)) + g) × stripe.
var fillRows = map[string]string{
	"users": `insert into users (tenant_id, id, email, settings, version)
		select t, ($2 * (t - 1) + g) * 1000, 'user' || g || '@' || t || '.example', jsonb_build_object('n', g), 1
		from unnest($1::bigint[]) t, generate_series(1, $2::bigint) g`,
	"orders": `insert into orders (id, tenant_id, status, note, version)
		select ($2 * (t - 1) + g) * 1000, t, 'new', case when g % 5 = 0 then ` + fillBig + ` end, 1
		from unnest($1::bigint[]) t, generate_series(1, $2::bigint) g`,
	"documents": `insert into documents (id, tenant_id, title, body, version)
		select ($2 * (t - 1) + g) * 1000, t, 'document ' || g, case when g % 2 = 0 then ` + fillBig + ` else 'short' end, 1
		from unnest($1::bigint[]) t, generate_series(1, $2::bigint) g`,
	"events": `insert into events (tenant_id, id, kind, payload, version)
		select ` + eventTenantSQL + `, ($2 * (t - 1) + g) * 1000, 'filled', jsonb_build_object('n', g), 1
		from unnest($1::bigint[]) t, generate_series(1, $2::bigint) g`,
}

const (
	fillItems = `insert into order_items (order_id, line, amount, version)
		select ($2 * (t - 1) + g) * 1000, l, l * 1.25, 1
		from unnest($1::bigint[]) t, generate_series(1, $2::bigint) g, generate_series(1, $3::int) l`
	fillTenants = `insert into tenants (id, parent_tenant_id, name, version)
		select t, case when t % 3 = 0 then t - 1 end, 'tenant ' || t, 1 from unnest($1::bigint[]) t`
	fillCountries = `insert into countries (code, name, version) select c, 'country ' || c, 1 from unnest($1::text[]) c`
)

// Fill makes the tenants and their first rows where Target says, writes them into the ledger and gives them to the
// writers. The tables must exist and be empty.
func (w *Workload) Fill(ctx context.Context, sizes FillSizes) error {
	if err := w.fillReference(ctx, sizes.Countries); err != nil {
		return err
	}
	if !w.ledger.omni["tenants"] {
		if err := w.fillTable(ctx, "tenants", fillTenants); err != nil {
			return err
		}
	}
	for _, t := range w.filled(sizes) {
		sql := fillRows[t.name]
		if w.o.Narrow {
			sql = strings.ReplaceAll(sql, fillBig, "'short'")
		}
		if err := w.fillTable(ctx, t.name, sql, int64(t.each)); err != nil {
			return err
		}
	}
	if err := w.fillTable(ctx, "orders", fillItems, int64(sizes.Orders), sizes.Items); err != nil {
		return err
	}
	w.adopt(sizes)
	return nil
}

type filledTable struct {
	name string
	each int
}

func (w *Workload) filled(sizes FillSizes) []filledTable {
	return []filledTable{{"users", sizes.Users}, {"orders", sizes.Orders}, {"documents", sizes.Documents}, {"events", sizes.Events}}
}

// fillTable runs one statement for the tenants of each shard.
func (w *Workload) fillTable(ctx context.Context, table, sql string, args ...any) error {
	tenants := map[string][]int64{}
	for t := range int64(w.o.Tenants) {
		url, err := w.o.Target(ctx, table, t+1)
		if err != nil {
			return err
		}
		tenants[url] = append(tenants[url], t+1)
	}
	for url, ids := range tenants {
		if err := execAt(ctx, url, sql, append([]any{ids}, args...)...); err != nil {
			return fmt.Errorf("fill %s: %w", table, err)
		}
	}
	return nil
}

func (w *Workload) fillReference(ctx context.Context, countries int) error {
	urls, err := w.o.All(ctx)
	if err != nil {
		return err
	}
	var codes []string
	for n := range countries {
		codes = append(codes, countryCode(n))
	}
	var tenants []int64
	for t := range int64(w.o.Tenants) {
		tenants = append(tenants, t+1)
	}
	for _, url := range urls {
		if err := execAt(ctx, url, fillCountries, codes); err != nil {
			return fmt.Errorf("fill countries: %w", err)
		}
		if !w.ledger.omni["tenants"] {
			continue
		}
		if err := execAt(ctx, url, fillTenants, tenants); err != nil {
			return fmt.Errorf("fill tenants: %w", err)
		}
	}
	return nil
}

func execAt(ctx context.Context, url, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql, args...)
	return err
}

// adopt deals the filled rows to the writers, as fillRows numbers them.
func (w *Workload) adopt(sizes FillSizes) {
	var effects []effect
	deal := func(n int64, table string, row *liveRow) {
		row.version = 1
		writer := w.writers[n%int64(len(w.writers))]
		writer.rows[table] = append(writer.rows[table], row)
		effects = append(effects, row.effects(table)...)
	}
	for n := range sizes.Countries {
		deal(int64(n), "countries", &liveRow{code: countryCode(n)})
	}
	for t := int64(1); t <= int64(w.o.Tenants); t++ {
		deal(t, "tenants", &liveRow{id: t, tenant: t})
		for _, table := range w.filled(sizes) {
			for g := int64(1); g <= int64(table.each); g++ {
				row := &liveRow{id: (int64(table.each)*(t-1) + g) * stripe, tenant: t}
				if table.name == "orders" {
					for range sizes.Items {
						row.items = append(row.items, 1)
					}
				}
				deal(t+g, table.name, row)
			}
		}
	}
	w.ledger.acknowledge(effects)
}

// effects is what the row and its items are now, for the ledger.
func (r *liveRow) effects(table string) []effect {
	key := fmt.Sprint(r.id)
	if table == "countries" {
		key = r.code
	}
	all := []effect{{ledgerKey{table, key}, r.version}}
	for i, version := range r.items {
		all = append(all, effect{ledgerKey{"order_items", fmt.Sprintf("%s/%d", key, i+1)}, version})
	}
	return all
}
