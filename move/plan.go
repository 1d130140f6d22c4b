package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// Plan is what a move would do and everything that keeps it from starting. Making one changes nothing.
type Plan struct {
	Nodes    []PlannedNode   `json:"nodes"`
	Tables   []PlannedTable  `json:"tables"`
	Problems layout.Problems `json:"problems"`
	Notes    []string        `json:"notes"` // what an operator should know and need not mend
}

// PlannedNode is one shard of either side.
type PlannedNode struct {
	Side     string `json:"side"` // "source" or "destination"
	Shard    int    `json:"shard"`
	Node     string `json:"node"`
	Version  string `json:"version"`
	Sessions int    `json:"sessions"` // connections the move opens there at most
}

// PlannedTable is one table of the move.
type PlannedTable struct {
	Table string `json:"table"`
	Rule  string `json:"rule"`
	Rows  int64  `json:"rows"`  // the server's estimate over all sources, -1 where it has none
	Bytes int64  `json:"bytes"` // heap and TOAST over all sources
}

// mayStart refuses a move that is not known yet and that something blocks.
func (m *Move) mayStart(ctx context.Context) error {
	plan, err := m.Plan(ctx)
	if err != nil {
		return err
	}
	if len(plan.Problems) > 0 {
		return &PlanError{plan.Problems}
	}
	return nil
}

// Plan reads both sides and names every problem at once. What it tries, it tries in transactions rolled back.
func (m *Move) Plan(ctx context.Context) (*Plan, error) {
	p := &planner{Move: m, plan: &Plan{Problems: layout.Problems{}, Notes: []string{}}, systems: map[string]string{}}
	sources := p.side(ctx, "source", m.Source, p.checkSource)
	p.side(ctx, "destination", m.Destination, p.checkDestination)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if sources {
		p.checkNames(ctx)
		if err := p.checkTables(ctx); err != nil {
			return nil, err
		}
	}
	return p.plan, nil
}

type planner struct {
	*Move
	plan    *Plan
	mu      sync.Mutex
	systems map[string]string // system identifier and database to which shard it is
	fresh   bool              // the home was asked and knows no move of this name
}

func (p *planner) problem(where, what, hint string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan.Problems = append(p.plan.Problems, layout.Problem{Table: where, What: what, Hint: hint})
}

func (p *planner) note(format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf(format, args...))
}

// side looks at every shard of one side; it says whether all could be read.
func (p *planner) side(ctx context.Context, name string, side Side, check func(context.Context, string, int, *pgx.Conn)) bool {
	reached := true
	for n, shard := range side.Shards {
		where := fmt.Sprintf("%s shard %d", name, n)
		err := p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
			p.node(conn, name, n, shard)
			return p.checkNode(ctx, where, n, conn, check)
		})
		if err != nil {
			reached = false
			p.problem(where, "cannot be read: "+oneLine(err), "check the URL, that the server runs, and pg_hba.conf")
		}
	}
	return reached
}

func (p *planner) node(conn *pgx.Conn, side string, n int, shard pg.Shard) {
	sessions := 3
	if side == "source" {
		sessions += p.CopyWorkers + 2
	} else {
		sessions += (p.CopyWorkers + 1) * len(p.Source.Shards)
	}
	p.plan.Nodes = append(p.plan.Nodes, PlannedNode{Side: side, Shard: n, Node: p.Move.node(shard),
		Version: conn.PgConn().ParameterStatus("server_version"), Sessions: sessions})
}

const selectNode = `select (select system_identifier::text from pg_control_system()) || '/' || current_database(), pg_is_in_recovery(),
	current_setting('server_version_num')::int / 10000, has_database_privilege(current_database(), 'create'), current_user::text`

func (p *planner) checkNode(ctx context.Context, where string, n int, conn *pgx.Conn, check func(context.Context, string, int, *pgx.Conn)) error {
	var system, user string
	var recovery, create bool
	var major int
	if err := conn.QueryRow(ctx, selectNode).Scan(&system, &recovery, &major, &create, &user); err != nil {
		return err
	}
	if other := p.systems[system]; other != "" {
		p.problem(where, "is the same database as "+other, "give every shard a database of its own")
	}
	p.systems[system] = where
	if recovery {
		p.problem(where, "is a standby", "name the primary, or all its nodes: the one that leads is found")
	}
	if major < 14 || major > 18 {
		p.problem(where, fmt.Sprintf("runs PostgreSQL %d", major), "14 to 18 are supported")
	}
	if !create {
		p.problem(where, "role "+user+" may not create the schema pgreshard",
			fmt.Sprintf("grant create on database %s to %s", ident(conn.Config().Database), ident(user)))
	}
	check(ctx, where, n, conn)
	return nil
}

// oneLine is an error of a connection, which lists each address tried on a line of its own, as a problem is told.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func ident(name string) string { return pgx.Identifier{name}.Sanitize() }

const selectSource = `select current_setting('wal_level'),
	current_setting('max_replication_slots')::int - (select count(*) from pg_replication_slots),
	current_setting('max_wal_senders')::int - (select count(*) from pg_stat_replication)`

func (p *planner) checkSource(ctx context.Context, where string, n int, conn *pgx.Conn) {
	var level string
	var slots, senders int
	if err := conn.QueryRow(ctx, selectSource).Scan(&level, &slots, &senders); err != nil {
		p.problem(where, "cannot be read: "+err.Error(), "")
		return
	}
	if level != "logical" {
		p.problem(where, "wal_level is "+level, "alter system set wal_level = 'logical', and restart the server")
	}
	if slots < 2 {
		p.problem(where, fmt.Sprintf("%d replication slots are free, 2 are needed", slots), "raise max_replication_slots, or drop slots nobody uses")
	}
	if senders < 2 {
		p.problem(where, fmt.Sprintf("%d walsenders are free, 2 are needed", senders), "raise max_wal_senders")
	}
	replication, err := pg.OpenReplication(ctx, p.Source.Shards[n], p.app(), nil)
	if err != nil {
		p.problem(where, "a replication connection is refused: "+oneLine(err),
			fmt.Sprintf("alter role %s replication, and let pg_hba.conf admit it", ident(conn.Config().User)))
	} else {
		_ = replication.Close(ctx)
	}
	p.checkServing(ctx, where, conn)
}

// checkServing compares the configuration with the layout that is recorded there from an earlier move.
func (p *planner) checkServing(ctx context.Context, where string, conn *pgx.Conn) {
	serving, err := checkpoints.ReadServing(ctx, conn)
	if err == nil && serving != nil && serving.Version != p.Source.Layout {
		p.problem(where, fmt.Sprintf("layout %d is recorded as serving there, the configuration says [source] layout = %d", serving.Version, p.Source.Layout),
			"`pgreshard layout` shows the serving layout")
	}
}

func (p *planner) checkDestination(ctx context.Context, where string, n int, conn *pgx.Conn) {
	if n == 0 { // the home
		known, err := checkpoints.FindMove(ctx, conn, p.Name)
		p.fresh = err == nil && known == nil
	}
	writer, err := pg.Open(ctx, p.Destination.Shards[n], pg.Writer, p.app())
	if err != nil {
		p.problem(where, "session_replication_role cannot be set: "+oneLine(err),
			fmt.Sprintf("grant set on parameter session_replication_role to %s (PostgreSQL 15 and later), or use a superuser", ident(conn.Config().User)))
	} else {
		pg.Close(writer)
	}
	if encoding := conn.PgConn().ParameterStatus("server_encoding"); encoding != "UTF8" {
		p.problem(where, "its encoding is "+encoding+": text keys are hashed in UTF8 only", "make the destination databases with encoding UTF8")
	}
	if !p.CreateSchema || !p.fresh {
		return
	}
	catalog, err := pg.ReadCatalog(ctx, conn)
	if err != nil {
		p.problem(where, "its tables cannot be read: "+err.Error(), "")
		return
	}
	for _, t := range catalog.Roots() {
		if p.matches(t.Name) {
			p.problem(where, fmt.Sprintf("table %s exists already", t.Name), "drop it, or set [schema] create = false if it is meant to be filled")
		}
	}
}

// checkTables compiles the rules and looks at every table that is to be moved.
func (p *planner) checkTables(ctx context.Context) error {
	inv, err := p.takeInventory(ctx)
	var wrong *PlanError
	if err != nil && !errors.As(err, &wrong) {
		return err
	}
	for n := range inv.sources {
		p.checkOwners(ctx, inv, n)
	}
	if wrong != nil {
		p.plan.Problems = append(p.plan.Problems, wrong.Problems...)
		return nil
	}
	for _, t := range inv.tables {
		p.plan.Tables = append(p.plan.Tables, inv.planned(t))
		p.checkLookup(ctx, inv, t)
	}
	for n := range inv.sources {
		for _, leaf := range inv.leaves(n) {
			p.checkIdentity(inv, leaf, n)
		}
	}
	if !p.CreateSchema {
		p.checkExisting(ctx, inv)
	}
	for _, gap := range inv.layout.Gaps() {
		p.note("%s", gap)
	}
	for _, rule := range inv.layout.Unused() {
		p.note("no table of the move comes under %s", rule)
	}
	p.notMoved(inv)
	return p.noteForeignKeys(ctx, inv)
}

// noteForeignKeys names the foreign keys that hold only as long as both rows live on one shard.
func (p *planner) noteForeignKeys(ctx context.Context, inv *inventory) error {
	if len(p.Destination.Shards) == 1 {
		return nil
	}
	return p.on(ctx, p.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		keys, err := ForeignKeys(ctx, conn, inv.names(), p.SkipConstraint)
		for _, k := range keys {
			if to := inv.byName[k.Refers]; to != nil && !to.rule.Omni && !k.Leaf {
				p.note(`foreign key %s of %s refers to %s, which is sharded: it can be kept only if both rows always live on one shard; `+
					`else leave it out with [schema] skip = ["fk:%s"]`, k.Name, k.Table, k.Refers, k.Name)
			}
		}
		return err
	})
}

func (inv *inventory) planned(t *moved) PlannedTable {
	out := PlannedTable{Table: t.name.String(), Rule: t.rule.Describe()}
	for n, catalog := range inv.sources {
		if !t.follows(n) {
			continue
		}
		for _, leaf := range catalog.Leaves(catalog.Table(t.name)) {
			out.Bytes += leaf.Bytes
			out.Rows += max(leaf.Rows, 0)
		}
	}
	return out
}

func (p *planner) checkLookup(ctx context.Context, inv *inventory, t *moved) {
	if t.query == nil {
		return
	}
	err := p.on(ctx, p.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		d, err := lookup.Validate(ctx, conn.PgConn(), t.query.SQL)
		if err != nil {
			return err
		}
		for _, what := range d.Problems {
			found := lookupProblem(t.name.String(), what)
			p.problem(found.Table, found.What, found.Hint)
		}
		return nil
	})
	if err != nil {
		p.problem(t.name.String(), "lookup_query: "+err.Error(), "")
	}
	for _, name := range t.reads {
		if inv.byName[name] == nil {
			p.problem(t.name.String(), fmt.Sprintf("its lookup_query reads %s, which is not moved", name), "move the mapping table too, as an omnisharded or a sharded one")
		}
	}
}

const selectForeignOwned = `select n.nspname, c.relname, o.rolname, o.rolsuper, current_user::text
	from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_roles o on o.oid = c.relowner
	where c.oid = any($1) and not pg_has_role(c.relowner, 'usage') order by 1, 2`

// checkOwners: publishing a table and putting a trigger on it need its owner. It does not need the rules.
func (p *planner) checkOwners(ctx context.Context, inv *inventory, source int) {
	var oids []uint32
	for _, t := range inv.sources[source].Roots() {
		if !p.matches(t.Name) || t.Persistence != 'p' {
			continue
		}
		for _, part := range inv.sources[source].Tree(t) {
			oids = append(oids, part.OID)
		}
	}
	where := fmt.Sprintf("source shard %d", source)
	err := p.on(ctx, p.Source.Shards[source], pg.Reader, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectForeignOwned, oids)
		if err != nil {
			return err
		}
		var name pg.Name
		var owner, user string
		var super bool
		_, err = pgx.ForEachRow(rows, []any{&name.Schema, &name.Table, &owner, &super, &user}, func() error {
			hint := fmt.Sprintf("grant %s to %s", ident(owner), ident(user))
			if super { // membership would hand out far more than this table
				hint = fmt.Sprintf("alter table %s owner to %s, or to a role it is a member of", name.SQL(), ident(user))
			}
			p.problem(where, fmt.Sprintf("role %s does not own %s", user, name), hint)
			return nil
		})
		return err
	})
	if err != nil {
		p.problem(where, "owners cannot be read: "+err.Error(), "")
	}
}

func (p *planner) checkIdentity(inv *inventory, leaf *pg.Table, source int) {
	if p.SetIdentity || !p.needsFull(inv, leaf, source) {
		p.noteLoose(inv, leaf, source)
		return
	}
	what := "without a usable replica identity the application's own UPDATE and DELETE would fail once it is published"
	if len(leaf.Logged) > 0 {
		what = "its replica identity does not carry the sharding key, and with several sources an old row must tell whose it is"
	}
	p.problem(leaf.Name.String(), what, fmt.Sprintf(`alter table %s replica identity full, or set [tables] replica_identity = "full"`, leaf.Name.SQL()))
}

// noteLoose says what it costs when the log does not tell which shard an old row is on.
func (p *planner) noteLoose(inv *inventory, leaf *pg.Table, source int) {
	t := inv.tableOf(leaf, source)
	if source != 0 || t == nil || t.rule.Omni || t.query != nil || logsAll(leaf, t.rule.Columns) {
		return
	}
	p.note("%s: its replica identity does not carry the sharding key (%s): each DELETE is asked of every shard, and an UPDATE that changes the key "+
		"makes the stream search row by row; alter table %s replica identity full avoids it", leaf.Name, strings.Join(t.rule.Columns, ", "), leaf.Name.SQL())
}

// checkExisting compares tables that are there already with the source's.
func (p *planner) checkExisting(ctx context.Context, inv *inventory) {
	for n, shard := range p.Destination.Shards {
		where := fmt.Sprintf("destination shard %d", n)
		err := p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
			catalog, err := pg.ReadCatalog(ctx, conn)
			if err != nil {
				return err
			}
			for _, t := range inv.tables {
				into := catalog.Table(t.name)
				if into == nil {
					p.problem(where, fmt.Sprintf("table %s is missing", t.name), "create it, or set [schema] create = true")
					continue
				}
				for _, what := range CompareTables(inv.sources[0].Table(t.name), into) {
					p.problem(where, fmt.Sprintf("table %s differs: %s", t.name, what), "make it like the source's")
				}
				var rows bool
				if err := conn.QueryRow(ctx, "select exists (select from "+t.name.SQL()+")").Scan(&rows); err != nil {
					return err
				}
				if rows {
					p.problem(where, fmt.Sprintf("table %s holds rows", t.name), "empty it")
				}
			}
			return nil
		})
		if err != nil {
			p.problem(where, "its tables cannot be read: "+err.Error(), "")
		}
	}
}

// notMoved lists tables the move leaves out although the configuration's patterns take them.
func (p *planner) notMoved(inv *inventory) {
	var unlogged []string
	for _, t := range inv.sources[0].Roots() {
		if t.Persistence != 'p' && p.matches(t.Name) {
			unlogged = append(unlogged, t.Name.String())
		}
	}
	slices.Sort(unlogged)
	if len(unlogged) > 0 {
		p.note("not moved, because their changes are not in the log: unlogged %s", strings.Join(unlogged, ", "))
	}
}

// detail reads one thing an earlier run remembered on the home; into stays as it is where there is none.
func (m *Move) detail(ctx context.Context, key string, into any) error {
	known, err := m.find(ctx)
	if err != nil || known == nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(known.Detail, &all); err != nil || all[key] == nil {
		return err
	}
	return json.Unmarshal(all[key], into)
}
