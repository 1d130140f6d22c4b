package move

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// Trigger is a user's trigger on a moved table and when it fires.
type Trigger struct {
	Table pg.Name
	Name  string
	// State is pg_trigger.tgenabled: 'O' for everybody but replica role, 'D' disabled, 'R' replica role only, 'A' always.
	State byte
}

// Triggers that belong to foreign keys and deferrable constraints are not a user's; clones on partitions are, because
// each has its own state.
const selectTriggers = `
select n.nspname, c.relname, t.tgname, t.tgenabled::text
  from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
  join pg_proc p on p.oid = t.tgfoid
  join unnest($1::text[], $2::text[]) m (schema, name) on m.schema = n.nspname and m.name = c.relname
 where p.pronamespace is distinct from to_regnamespace('pgreshard')
   and not exists (select from pg_constraint x where x.oid = t.tgconstraint and x.contype <> 't')
 order by 1, 2, 3`

// TriggerStates reads the users' triggers of the tables given, partitions named on their own.
func TriggerStates(ctx context.Context, q pg.Querier, tables []pg.Name) ([]Trigger, error) {
	schemas, names := splitNames(tables)
	rows, err := q.Query(ctx, selectTriggers, schemas, names)
	if err != nil {
		return nil, fmt.Errorf("read triggers: %w", err)
	}
	var out []Trigger
	var t Trigger
	var state string
	_, err = pgx.ForEachRow(rows, []any{&t.Table.Schema, &t.Table.Table, &t.Name, &state}, func() error {
		t.State = state[0]
		out = append(out, t)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read triggers: %w", err)
	}
	return out, nil
}

// splitNames makes the two arrays unnest takes.
func splitNames(tables []pg.Name) (schemas, names []string) {
	schemas, names = make([]string, len(tables)), make([]string, len(tables))
	for i, t := range tables {
		schemas[i], names[i] = t.Schema, t.Table
	}
	return schemas, names
}

// DisableTriggers disables every user's trigger of the tables given, so that not even one that is ENABLE ALWAYS fires
// for the rows the worker writes. It may be repeated.
func DisableTriggers(ctx context.Context, conn *pgx.Conn, tables []pg.Name) error {
	there, err := TriggerStates(ctx, conn, tables)
	if err != nil {
		return err
	}
	for i := range there {
		there[i].State = 'D'
	}
	return SetTriggerStates(ctx, conn, there)
}

// SetTriggerStates gives triggers the states they have on the source, in one transaction and one round trip. A trigger
// that has its state already is not touched, so that no lock is taken for it; one that is missing is an error.
func SetTriggerStates(ctx context.Context, conn *pgx.Conn, want []Trigger) error {
	have, err := TriggerStates(ctx, conn, tablesOf(want))
	if err != nil {
		return err
	}
	there := map[Trigger]bool{}
	for _, t := range have {
		there[t] = true
	}
	var sql strings.Builder
	for _, t := range want {
		if !there[t] {
			// ONLY: a partition's clone has its own entry in the list.
			fmt.Fprintf(&sql, "alter table only %s %s trigger %s;\n", t.Table.SQL(), enableWord(t.State), pgx.Identifier{t.Name}.Sanitize())
		}
	}
	if sql.Len() == 0 {
		return nil
	}
	// Several statements in one simple query are one transaction.
	if _, err := conn.PgConn().Exec(ctx, sql.String()).ReadAll(); err != nil {
		return fmt.Errorf("set the state of triggers: %w", err)
	}
	return nil
}

func tablesOf(triggers []Trigger) (tables []pg.Name) {
	for _, t := range triggers {
		tables = append(tables, t.Table)
	}
	return tables
}

func enableWord(state byte) string {
	switch state {
	case 'D':
		return "disable"
	case 'R':
		return "enable replica"
	case 'A':
		return "enable always"
	}
	return "enable"
}
