package pgtest

import "fmt"

// WorkloadSchema makes the tables a Workload writes to: a small SaaS application.
//
//   - tenants have parents; rows of a child belong where its parent's belong (see RootTenant).
//   - users hold the sharding key in their identity, orders and documents do not (their primary key is id alone).
//   - order_items have no tenant; they reach it by their order, and are deleted with it.
//   - events have no key at all and a uuid for a tenant (see EventTenant).
//   - countries are a reference table.
const WorkloadSchema = `
create table tenants (
	id bigint primary key,
	parent_tenant_id bigint,
	name text not null,
	version bigint not null
);
create table users (
	tenant_id bigint not null,
	id bigint not null,
	email text not null,
	settings jsonb,
	version bigint not null,
	primary key (tenant_id, id)
);
create table orders (
	id bigint primary key,
	tenant_id bigint not null,
	status text not null,
	placed_at timestamptz not null default now(),
	note text,
	version bigint not null
);
create index orders_tenant on orders (tenant_id);
create table order_items (
	order_id bigint not null references orders (id) on delete cascade,
	line int not null,
	amount numeric(12, 2) not null,
	version bigint not null,
	primary key (order_id, line)
);
create table documents (
	id bigint primary key,
	tenant_id bigint not null,
	title text not null,
	body text,
	version bigint not null
);
create index documents_tenant on documents (tenant_id);
create table events (
	tenant_id uuid not null,
	id bigint not null,
	kind text not null,
	payload jsonb,
	version bigint not null
);
create index events_id on events (id);
alter table events replica identity full;
create table countries (
	code char(2) primary key,
	name text not null,
	version bigint not null
);
`

// WorkloadTables are the tables of WorkloadSchema.
func WorkloadTables() []string {
	return []string{"tenants", "users", "orders", "order_items", "documents", "events", "countries"}
}

// RootTenant is what coalesce(parent_tenant_id, id) gives for a tenant: every third one has its predecessor for parent.
func RootTenant(tenant int64) int64 {
	if tenant%3 == 0 {
		return tenant - 1
	}
	return tenant
}

// EventTenant is the uuid that stands for a tenant in events.
func EventTenant(tenant int64) string {
	return fmt.Sprintf("a0000000-0000-4000-8000-%012x", tenant)
}

// eventTenantSQL is EventTenant of the column t.
const eventTenantSQL = `('a0000000-0000-4000-8000-' || lpad(to_hex(t), 12, '0'))::uuid`

// countryCode is the n-th of 676 codes.
func countryCode(n int) string {
	return string([]byte{byte('A' + n/26%26), byte('A' + n%26)})
}
