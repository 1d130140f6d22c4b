package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/forecast"
	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/survey"
)

// Plan is what a move would do and everything that keeps it from starting. Making one changes nothing.
type Plan struct {
	State    string          `json:"state,omitempty"` // of the move, where it has been made already
	Nodes    []PlannedNode   `json:"nodes"`
	Tables   []PlannedTable  `json:"tables"`
	Problems layout.Problems `json:"problems"`
	// PublishesOnly: there is no destination.
	PublishesOnly bool     `json:"publishes_only,omitempty"`
	Notes         []string `json:"notes"` // what an operator should know and need not mend
	// Statements lose their shard; PlanWith only.
	Statements []PlannedStatement `json:"statements,omitempty"`
	// Surveys are what samples of the sources' rows tell of the sharded tables, the largest first; PlanWith only.
	Surveys []*survey.Report `json:"surveys,omitempty"`
	// Forecast is what the move will take, nil where that could not be tried; PlanWith only.
	Forecast *forecast.Forecast `json:"forecast,omitempty"`
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
	p, _, err := m.plan(ctx, PlanOptions{})
	if err != nil {
		return nil, err
	}
	return p.plan, nil
}

// plan also hands out what the rules are, nil where they cannot be told.
func (m *Move) plan(ctx context.Context, o PlanOptions) (*planner, *inventory, error) {
	p := &planner{Move: m, everyKey: o.EveryKey, plan: &Plan{Problems: layout.Problems{}, Notes: []string{}, PublishesOnly: m.publishesOnly()}, systems: map[string]string{}}
	sources := p.side(ctx, "source", m.Source, p.checkSource)
	p.side(ctx, "destination", m.Destination, p.checkDestination)
	if ctx.Err() != nil {
		return p, nil, ctx.Err()
	}
	if !p.switched() { // else the record is this move's own
		p.plan.Problems = append(p.plan.Problems, p.serving...)
	}
	if sources && p.publishesOnly() {
		return p, nil, p.checkPublished(ctx)
	}
	if sources {
		p.checkNames(ctx)
		inv, err := p.checkTables(ctx)
		return p, inv, err
	}
	return p, nil, nil
}

// switched says that the new layout serves by this move, or did.
func (p *planner) switched() bool {
	switch p.plan.State {
	case StateSwitched, StateRollingBack, StateCompleted:
		return true
	}
	return false
}

type planner struct {
	*Move
	everyKey bool // PlanOptions.EveryKey
	plan     *Plan
	mu       sync.Mutex
	systems  map[string]string // system identifier and database to which shard it is
	fresh    bool              // the home was asked and knows no move of this name
	serving  layout.Problems   // sources on which another layout serves
}

func (p *planner) problem(where, what, hint string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := layout.Problem{Table: where, What: what, Hint: hint}
	if !slices.Contains(p.plan.Problems, found) { // each of several sources has it
		p.plan.Problems = append(p.plan.Problems, found)
	}
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
	sessions := 4
	if side == "source" {
		all := len(p.Source.Shards) // the workers of each that is copied ask every other for translations
		sessions += p.CopyWorkers*min(cmp.Or(p.CopySources, all), all) + 2
		if p.Reverse { // a stream of each shard writes there, and another session looks at its standbys
			sessions = max(sessions, 6+2*len(p.Destination.Shards))
		}
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
	if err := checkpoints.RefuseForeign(ctx, conn); errors.Is(err, checkpoints.ErrForeignSchema) {
		p.problem(where, "has a schema pgreshard that pgreshard has not made", "rename it, or drop it if nobody needs it")
	}
	check(ctx, where, n, conn)
	return nil
}

// oneLine is an error of a connection, which lists each address tried on a line of its own, as a problem is told.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func ident(name string) string { return pgx.Identifier{name}.Sanitize() }
