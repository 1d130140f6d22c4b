package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// ForeignKey is one foreign key of a moved table as the source defines it.
type ForeignKey struct {
	Table      pg.Name
	Refers     pg.Name // the table it refers to
	Columns    []string
	RefColumns []string // those of Refers, in the order of Columns
	Name       string
	Definition string // pg_get_constraintdef
	Comment    string
	Validated  bool // false: the source never checked the rows either, and neither do we
	// Root says that the table is partitioned. Before 18 such a key cannot be made without checking every row, so it
	// is made on the leaves first; once those are validated they are taken as the root's own, unchecked.
	Root bool
	// Leaf says that the key is a part of a Root's.
	Leaf bool
}

// A key that refers to a partitioned table has further entries for its partitions; those have their parent's conrelid
// and come with it.
const selectForeignKeys = `
with recursive fk (oid, conrelid, leaf, top) as (
  select x.oid, x.conrelid, false, x.conname from pg_constraint x
    join pg_class c on c.oid = x.conrelid join pg_namespace n on n.oid = c.relnamespace
    join unnest($1::text[], $2::text[]) m (schema, name) on m.schema = n.nspname and m.name = c.relname
   where x.contype = 'f' and x.conparentid = 0
  union all
  select x.oid, x.conrelid, true, fk.top from fk join pg_constraint x on x.conparentid = fk.oid and x.conrelid <> fk.conrelid
)
select n.nspname, c.relname, rn.nspname, rc.relname,
       array(select a.attname::text from unnest(x.conkey) with ordinality u(k, i) join pg_attribute a on a.attrelid = x.conrelid and a.attnum = u.k order by u.i),
       array(select a.attname::text from unnest(x.confkey) with ordinality u(k, i) join pg_attribute a on a.attrelid = x.confrelid and a.attnum = u.k order by u.i),
       x.conname, pg_get_constraintdef(x.oid),
       coalesce(obj_description(x.oid, 'pg_constraint'), ''), x.convalidated, c.relkind = 'p', fk.leaf, fk.top
  from fk join pg_constraint x on x.oid = fk.oid
  join pg_class c on c.oid = x.conrelid join pg_namespace n on n.oid = c.relnamespace
  join pg_class rc on rc.oid = x.confrelid join pg_namespace rn on rn.oid = rc.relnamespace
 where not (fk.leaf and c.relkind = 'p')
 order by 1, 2, 5`

// ForeignKeys reads the foreign keys of the tables given, without those named "fk:…" in skip. The session's search_path
// must be empty or pg_catalog, so that names come out qualified.
func ForeignKeys(ctx context.Context, q pg.Querier, tables []pg.Name, skip []string) ([]ForeignKey, error) {
	schemas, names := splitNames(tables)
	rows, err := q.Query(ctx, selectForeignKeys, schemas, names)
	if err != nil {
		return nil, fmt.Errorf("read foreign keys: %w", err)
	}
	var out []ForeignKey
	var k ForeignKey
	var top string // of a leaf's key: the name of the root's
	scan := []any{&k.Table.Schema, &k.Table.Table, &k.Refers.Schema, &k.Refers.Table, &k.Columns, &k.RefColumns, &k.Name, &k.Definition, &k.Comment,
		&k.Validated, &k.Root, &k.Leaf, &top}
	_, err = pgx.ForEachRow(rows, scan, func() error {
		if !slices.Contains(skip, "fk:"+top) {
			out = append(out, k)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read foreign keys: %w", err)
	}
	return out, nil
}

const selectMade = `select n.nspname, c.relname, x.conname, x.convalidated
  from pg_constraint x join pg_class c on c.oid = x.conrelid join pg_namespace n on n.oid = c.relnamespace
 where x.contype = 'f'`

// madeForeignKeys says which foreign keys a shard has and whether each is validated.
func madeForeignKeys(ctx context.Context, q pg.Querier) (map[string]bool, error) {
	rows, err := q.Query(ctx, selectMade)
	if err != nil {
		return nil, fmt.Errorf("read foreign keys: %w", err)
	}
	made := map[string]bool{}
	var k ForeignKey
	var validated bool
	_, err = pgx.ForEachRow(rows, []any{&k.Table.Schema, &k.Table.Table, &k.Name, &validated}, func() error {
		made[k.id()] = validated
		return nil
	})
	return made, err
}

func (k ForeignKey) id() string { return k.Table.SQL() + " " + pgx.Identifier{k.Name}.Sanitize() }

// AddForeignKeys makes foreign keys on one shard without checking the rows that are there: milliseconds, whatever the
// size. All in one transaction; those that exist are left alone, so it may be repeated.
func AddForeignKeys(ctx context.Context, conn *pgx.Conn, keys []ForeignKey) error {
	made, err := madeForeignKeys(ctx, conn)
	if err != nil {
		return err
	}
	var sql strings.Builder
	for _, k := range keys {
		if _, there := made[k.id()]; !there && !k.Root {
			sql.WriteString(k.add(k.Validated))
		}
	}
	if sql.Len() == 0 {
		return nil
	}
	if _, err := conn.PgConn().Exec(ctx, sql.String()).ReadAll(); err != nil {
		return fmt.Errorf("make foreign keys: %w", err)
	}
	return nil
}

// add is the statements that make the key. A definition the source never validated says so itself.
func (k ForeignKey) add(notValid bool) string {
	suffix := ""
	if notValid {
		suffix = " not valid"
	}
	sql := fmt.Sprintf("alter table %s add constraint %s %s%s;\n", k.Table.SQL(), pgx.Identifier{k.Name}.Sanitize(), k.Definition, suffix)
	if k.Comment != "" {
		sql += fmt.Sprintf("comment on constraint %s on %s is %s;\n", pgx.Identifier{k.Name}.Sanitize(), k.Table.SQL(), quoteLiteral(k.Comment))
	}
	return sql
}

func quoteLiteral(s string) string {
	return " E'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}

// ValidateForeignKeys checks the rows of one shard against the foreign keys AddForeignKeys made, one key at a time,
// and then makes those of partitioned tables out of their leaves'. Writers are not held up. It may be repeated. Keys
// that do not hold are left as they are and returned, as the server's errors that name them.
func ValidateForeignKeys(ctx context.Context, conn *pgx.Conn, keys []ForeignKey) (broken []error, err error) {
	made, err := madeForeignKeys(ctx, conn)
	if err != nil {
		return nil, err
	}
	run := func(k ForeignKey, what, sql string) error {
		_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
		if err != nil {
			err = fmt.Errorf("%s foreign key %s of %s: %w", what, k.Name, k.Table, err)
		}
		if pg.Code(err) == foreignKeyViolation {
			broken = append(broken, err)
			return nil
		}
		return err
	}
	for _, k := range keys {
		validated, there := made[k.id()]
		if k.Root || !k.Validated || there && validated {
			continue
		}
		if err := run(k, "validate", fmt.Sprintf("alter table %s validate constraint %s", k.Table.SQL(), pgx.Identifier{k.Name}.Sanitize())); err != nil {
			return broken, err
		}
	}
	for _, k := range keys {
		if _, there := made[k.id()]; k.Root && !there {
			if err := run(k, "make of its partitions'", k.add(false)); err != nil {
				return broken, err
			}
		}
	}
	return broken, nil
}

// foreignKeyViolation: a row refers to one that is not there.
const foreignKeyViolation = "23503"
