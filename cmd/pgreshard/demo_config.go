package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// demoRules place the tables of pgtest.WorkloadSchema: by tenant, children where their parents are, items where their
// order is, and two tables everywhere.
const demoRules = `
[[sharded_tables]]                      # users, orders and documents: every table with a tenant_id
column = "tenant_id"
data_type = "bigint"
lookup_query = "SELECT COALESCE(parent_tenant_id, id) FROM public.tenants WHERE id = $1"

[[sharded_tables]]                      # an item has no tenant and reaches it by its order
name = "order_items"
column = "order_id"
data_type = "bigint"
lookup_query = "SELECT COALESCE(t.parent_tenant_id, t.id) FROM public.orders o JOIN public.tenants t ON t.id = o.tenant_id WHERE o.id = $1"

[[sharded_tables]]
name = "events"
column = "tenant_id"
data_type = "uuid"

[[omnisharded_tables]]
tables = ["tenants", "countries"]
`

// writeConfig makes the file a user would write.
func (d *demo) writeConfig(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0") // a free port
	if err != nil {
		return fmt.Errorf("find a free port: %w", err)
	}
	d.listen = l.Addr().String()
	if err := l.Close(); err != nil {
		return fmt.Errorf("find a free port: %w", err)
	}
	source, err := d.wire.join(d.source, d.stderr)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[move]\nname = \"demo\"\n\n[http]\nlisten = %q\n\n[nats]\nurl = %q\n\n", d.listen, d.nats.Address())
	fmt.Fprintf(&b, "[source]\ndatabase = \"app\"\nlayout = 1\n[[source.shards]]\nurl = %q\n\n", source.URL())
	fmt.Fprintf(&b, "[destination]\ndatabase = \"app_sharded\"\nlayout = 2\n")
	for _, db := range d.shards {
		s, err := d.wire.join(db, d.stderr)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "[[destination.shards]]\nurl = %q\n", s.URL())
	}
	fmt.Fprintf(&b, "\n[cutover]\nreverse = %t\n", d.back)
	b.WriteString(demoRules)
	d.config = filepath.Join(d.dir, "pgreshard.toml")
	if err := os.WriteFile(d.config, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}
