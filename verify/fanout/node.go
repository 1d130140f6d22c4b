package fanout

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
)

// Consistency says which nodes may answer for a shard.
type Consistency string

// The three of them.
const (
	// Strong: the shard's leader alone, under the shard's Snapshot where there is one.
	Strong Consistency = "strong"
	// Bounded: the leader; where it does not answer, a replica that is known to be at most Request.Behind behind it.
	Bounded Consistency = "bounded"
	// Eventual: any node as it is now, replicas first.
	Eventual Consistency = "eventual"
)

// Shard is one part of the data.
type Shard struct {
	Number int
	// Nodes says where it is now, the leader among them. It is called once for each question.
	Nodes func(context.Context) ([]Node, error)
	// Snapshot is an exported snapshot of the leader to read under; empty: what is committed when the reading begins.
	Snapshot string
}

// Node is one server that has a shard's rows.
type Node struct {
	Name  string // host:port, as far as it is known before a session is open
	Leads bool   // else it is a replica
	Open  func(context.Context) (*pgx.Conn, error)
}

// NodesOf are a shard's leader, which is found anew each time, and its replicas.
func NodesOf(leader pg.Shard, replicas []pg.Shard, app string) func(context.Context) ([]Node, error) {
	return func(context.Context) ([]Node, error) {
		nodes := []Node{{Name: pg.Address(leader), Leads: true, Open: func(ctx context.Context) (*pgx.Conn, error) {
			return pg.Open(ctx, leader, pg.Reader, app)
		}}}
		for _, r := range replicas {
			nodes = append(nodes, Node{Name: pg.Address(r), Open: func(ctx context.Context) (*pgx.Conn, error) {
				return pg.OpenReplica(ctx, r, app)
			}})
		}
		return nodes, nil
	}
}

// inOrder are the nodes that may answer, the first to be asked first.
func (c Consistency) inOrder(nodes []Node) (order []Node) {
	var leaders, replicas []Node
	for _, n := range nodes {
		if n.Leads {
			leaders = append(leaders, n)
		} else {
			replicas = append(replicas, n)
		}
	}
	switch c {
	case Bounded:
		return append(leaders, replicas...)
	case Eventual:
		return append(replicas, leaders...)
	}
	return leaders
}

// reachMost is how long a node may take to open a session and to say what it is.
const reachMost = 10 * time.Second

// beginPart begins the transaction of one part. A name without schema is looked for as for a user who has set nothing.
const (
	beginPart = `begin isolation level repeatable read read only;`
	enterPath = `set local search_path = "$user", public; set local lc_monetary = 'C'`
)

// selectStanding tells a standby and how long ago what it has replayed last was committed: by then it had everything.
const selectStanding = `select pg_is_in_recovery(), extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp())::text`

var errStandby = errors.New("it does not lead")

// open opens a session on a node and begins the part's transaction.
func (r *Request) open(ctx context.Context, s *Shard, n *Node) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, reachMost)
	defer cancel()
	conn, err := n.Open(ctx)
	if err != nil {
		return nil, err
	}
	if n.Name == "" {
		n.Name = fmt.Sprintf("%s:%d", conn.Config().Host, conn.Config().Port)
	}
	sql := beginPart
	if s.Snapshot != "" {
		sql += "set transaction snapshot '" + strings.ReplaceAll(s.Snapshot, "'", "''") + "';"
	}
	results, err := conn.PgConn().Exec(ctx, sql+enterPath+";"+selectStanding).ReadAll()
	if err == nil {
		err = r.fits(n, results[len(results)-1].Rows[0])
	}
	if err != nil {
		pg.Close(conn)
		return nil, err
	}
	return conn, nil
}

// fits refuses a node that does not stand where it must: in one session with what is read there.
func (r *Request) fits(n *Node, standing [][]byte) error {
	standby := string(standing[0]) == "t"
	switch {
	case n.Leads && standby:
		return errStandby
	case n.Leads || r.Consistency == Eventual:
		return nil
	case !standby:
		return errNoStandby
	}
	seconds, err := strconv.ParseFloat(string(standing[1]), 64)
	if err != nil || seconds > r.Behind.Seconds() {
		return &behindError{r.Behind}
	}
	return nil
}

// rows reads one statement's rows in text form.
func rows(ctx context.Context, conn *pgconn.PgConn, sql string, args [][]byte) (all [][]*string, err error) {
	result := conn.ExecParams(ctx, sql, args, nil, nil, nil)
	for result.NextRow() {
		row := make([]*string, len(result.Values()))
		for i, value := range result.Values() {
			if value != nil {
				text := string(value)
				row[i] = &text
			}
		}
		all = append(all, row)
	}
	_, err = result.Close()
	return all, err
}
