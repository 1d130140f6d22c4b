package pg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Querier is what reads a catalog: a connection, a transaction or a pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Catalog is every ordinary and partitioned table of a database outside system schemas and schema pgreshard, as it was
// when it was read.
type Catalog struct {
	Tables []*Table            // by schema and name
	Enums  map[string][]string // labels in their order, by the type's name under search_path pg_catalog
	byName map[Name]*Table
	byOID  map[uint32]*Table
}

const selectTables = `
select c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, pg_get_userbyid(c.relowner), c.relreplident::text,
       coalesce(pg_relation_filenode(c.oid), 0),
       case when c.relispartition then coalesce((select i.inhparent from pg_inherits i where i.inhrelid = c.oid limit 1), 0) else 0 end,
       coalesce(pg_partition_root(c.oid)::oid, c.oid),
       coalesce(pg_get_expr(c.relpartbound, c.oid), ''),
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int,
       coalesce(pg_table_size(c.oid), 0), c.reltuples::bigint
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'p') and c.relpersistence <> 't'
   and n.nspname not in ('pg_catalog', 'information_schema', 'pgreshard') and n.nspname !~ '^pg_'
   and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
 order by n.nspname, c.relname`

const selectColumns = `
with recursive base (oid, base, typbasetype) as (
  select oid, oid, typbasetype from pg_type
  union all
  select b.oid, t.oid, t.typbasetype from base b join pg_type t on t.oid = b.typbasetype
)
select a.attrelid, a.attnum, a.attname, a.atttypid, b.base, a.atttypmod, format_type(a.atttypid, a.atttypmod), format_type(b.base, -1), t.typtype::text,
       case when bt.typcategory = 'A' then bt.typelem else 0 end, t.typarray,
       a.attnotnull, a.attidentity::text, a.attgenerated::text, a.atthasdef and a.attgenerated = '',
       case when a.attcollation <> t.typcollation then quote_ident(cn.nspname) || '.' || quote_ident(co.collname) else '' end,
       coalesce(co.collisdeterministic, true), case when a.attgenerated = '' then coalesce(pg_get_expr(d.adbin, d.adrelid), '') else '' end,
       case when a.atthasmissing then (a.attmissingval::text::text[])[1] end, a.xmin::text, md5(a::text)
  from pg_attribute a
  join pg_class c on c.oid = a.attrelid
  join pg_namespace n on n.oid = c.relnamespace
  join pg_type t on t.oid = a.atttypid
  join base b on b.oid = a.atttypid and b.typbasetype = 0
  join pg_type bt on bt.oid = b.base
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
  left join pg_collation co on co.oid = a.attcollation
  left join pg_namespace cn on cn.oid = co.collnamespace
 where a.attnum > 0 and not a.attisdropped and c.relkind in ('r', 'p') and c.relpersistence <> 't'
   and n.nspname not in ('pg_catalog', 'information_schema', 'pgreshard') and n.nspname !~ '^pg_'
 order by a.attrelid, a.attnum`

// A key is a unique index over whole columns that are never null, checked at once and over every row. The primary key
// comes first, then the index chosen as replica identity.
const selectKeys = `
select i.indrelid, i.indisprimary, i.indisreplident, x.relname,
       array(select k::int from unnest(i.indkey::int2[]) with ordinality u(k, n) where n <= i.indnkeyatts order by n)
  from pg_index i join pg_class x on x.oid = i.indexrelid join pg_class c on c.oid = i.indrelid join pg_namespace n on n.oid = c.relnamespace
 where (i.indisprimary or i.indisreplident) and i.indisunique and i.indimmediate and i.indisvalid and i.indpred is null
   and n.nspname not in ('pg_catalog', 'information_schema', 'pgreshard') and n.nspname !~ '^pg_'
 order by i.indrelid, i.indisprimary desc`

const selectEnums = `
select format_type(t.oid, null), array_agg(e.enumlabel::text order by e.enumsortorder)
  from pg_enum e join pg_type t on t.oid = e.enumtypid join pg_namespace n on n.oid = t.typnamespace
 where n.nspname not in ('pg_catalog', 'information_schema', 'pgreshard') and n.nspname !~ '^pg_'
 group by t.oid`

// ReadCatalog reads all tables in four statements. Tables that belong to an extension are left out.
func ReadCatalog(ctx context.Context, q Querier) (*Catalog, error) {
	c := &Catalog{byName: map[Name]*Table{}, byOID: map[uint32]*Table{}}
	if err := c.readTables(ctx, q); err != nil {
		return nil, fmt.Errorf("read tables from the catalog: %w", err)
	}
	if err := c.readColumns(ctx, q); err != nil {
		return nil, fmt.Errorf("read columns from the catalog: %w", err)
	}
	if err := c.readKeys(ctx, q); err != nil {
		return nil, fmt.Errorf("read keys from the catalog: %w", err)
	}
	if err := c.readEnums(ctx, q); err != nil {
		return nil, fmt.Errorf("read enumerations from the catalog: %w", err)
	}
	return c, nil
}

func (c *Catalog) readEnums(ctx context.Context, q Querier) error {
	rows, err := q.Query(ctx, selectEnums)
	if err != nil {
		return err
	}
	c.Enums = map[string][]string{}
	var name string
	var labels []string
	_, err = pgx.ForEachRow(rows, []any{&name, &labels}, func() error { c.Enums[name] = labels; return nil })
	return err
}

func (c *Catalog) readTables(ctx context.Context, q Querier) error {
	rows, err := q.Query(ctx, selectTables)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		t := &Table{}
		var kind, persistence, replica string
		err := rows.Scan(&t.OID, &t.Name.Schema, &t.Name.Table, &kind, &persistence, &t.Owner, &replica, &t.Filenode,
			&t.Parent, &t.Root, &t.Bound, &t.Pages, &t.Bytes, &t.Rows)
		if err != nil {
			return err
		}
		t.Kind, t.Persistence, t.Replica = kind[0], persistence[0], ReplicaIdentity(replica[0])
		c.Tables = append(c.Tables, t)
		c.byName[t.Name], c.byOID[t.OID] = t, t
	}
	return rows.Err()
}

func (c *Catalog) readColumns(ctx context.Context, q Querier) error {
	rows, err := q.Query(ctx, selectColumns)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var table uint32
		var k Column
		var typtype, identity, generated string
		err := rows.Scan(&table, &k.Num, &k.Name, &k.TypeOID, &k.BaseOID, &k.Typmod, &k.Type, &k.Base, &typtype, &k.ElemOID, &k.ArrayOID,
			&k.NotNull, &identity, &generated, &k.HasDefault, &k.Collation, &k.Deterministic, &k.Default, &k.Missing, &k.Written, &k.Row)
		if err != nil {
			return err
		}
		k.TypeType, k.Identity, k.Generated = letter(typtype), letter(identity), letter(generated)
		if t := c.byOID[table]; t != nil {
			t.Columns = append(t.Columns, k)
		}
	}
	return rows.Err()
}

func (c *Catalog) readKeys(ctx context.Context, q Querier) error {
	rows, err := q.Query(ctx, selectKeys)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var table uint32
		var primary, replica bool
		var index string
		var nums []int32
		if err := rows.Scan(&table, &primary, &replica, &index, &nums); err != nil {
			return err
		}
		t := c.byOID[table]
		if t == nil {
			continue
		}
		key := t.columnIndexes(nums)
		if t.Key == nil {
			t.Key = key
		}
		if t.Replica == IdentityDefault && primary || t.Replica == IdentityIndex && replica {
			t.Logged = key
		}
		if t.Replica == IdentityIndex && replica {
			t.ReplicaIndex = index
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, t := range c.Tables {
		if t.Replica == IdentityFull {
			for i := range t.Columns {
				t.Logged = append(t.Logged, i)
			}
		}
	}
	return nil
}

func (t *Table) columnIndexes(nums []int32) []int {
	var out []int
	for _, n := range nums {
		for i, c := range t.Columns {
			if int32(c.Num) == n {
				out = append(out, i)
			}
		}
	}
	return out
}

func letter(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}

// Table finds a table by name; nil where there is none.
func (c *Catalog) Table(name Name) *Table { return c.byName[name] }

// ByOID finds a table by its OID; nil where there is none.
func (c *Catalog) ByOID(oid uint32) *Table { return c.byOID[oid] }

// Roots lists the tables a rule can name: ordinary tables that are no partition, and topmost partitioned tables.
func (c *Catalog) Roots() []*Table {
	var out []*Table
	for _, t := range c.Tables {
		if t.Parent == 0 {
			out = append(out, t)
		}
	}
	return out
}

// Tree lists a root and every table below it; an ordinary table alone is its own tree.
func (c *Catalog) Tree(root *Table) []*Table {
	var out []*Table
	for _, t := range c.Tables {
		if t.Root == root.OID {
			out = append(out, t)
		}
	}
	return out
}

// Leaves lists the tables of a tree that hold rows.
func (c *Catalog) Leaves(root *Table) []*Table {
	var out []*Table
	for _, t := range c.Tree(root) {
		if t.IsLeaf() {
			out = append(out, t)
		}
	}
	return out
}
