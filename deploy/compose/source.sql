create table tenants (id bigint primary key, name text not null);
create table orders (id bigserial primary key, tenant_id bigint not null references tenants, placed_at timestamptz not null default now());
create table countries (code text primary key, name text not null);
insert into tenants select g, 'tenant ' || g from generate_series(1, 300) g;
insert into orders (tenant_id) select g % 300 + 1 from generate_series(1, 50000) g;
insert into countries select 'C' || g, 'country ' || g from generate_series(1, 50) g;
