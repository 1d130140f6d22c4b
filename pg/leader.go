package pg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// LeadersError means that more than one node of a shard says it leads: a standby was promoted while the leader before it
// runs on. No session is opened to any of them until one has given up.
type LeadersError struct {
	Shard Shard
	Nodes []string // host:port, in the order of the URL
}

func (e *LeadersError) Error() string {
	return fmt.Sprintf("%s: %s all say they lead, so nothing is read or written on any; hint: stop the one that must not lead, or make it a standby again; "+
		"what was only there is given up with it", e.Shard, strings.Join(e.Nodes, " and "))
}

// NoLeaderError means that no node of a shard leads and can be reached.
type NoLeaderError struct {
	Shard Shard
	Why   []error // of each node
}

func (e *NoLeaderError) Error() string {
	var all []string
	for _, err := range e.Why {
		all = append(all, err.Error())
	}
	return fmt.Sprintf("no node of %s leads: %s", e.Shard, strings.Join(all, "; "))
}

func (e *NoLeaderError) Unwrap() []error { return e.Why }

// OtherSystemError means that a node is not of the cluster the move was made with: its data is another's.
type OtherSystemError struct {
	Shard     Shard
	Node      string
	Want, Got string // system identifiers with database
}

func (e *OtherSystemError) Error() string {
	return fmt.Sprintf("%s: %s has the system identifier and database %s, and this move was made with %s; hint: the URL leads to another database, or the shard was made anew: "+
		"put it back and run the same command again", e.Shard, e.Node, e.Got, e.Want)
}

// errStandby means that a node follows another one.
var errStandby = errors.New("it is a standby")

// A server is told from another by when it was started: a URL may name one twice.
const selectIdentity = `select pg_is_in_recovery(), (select system_identifier from pg_control_system()) || '/' || current_database(), pg_postmaster_start_time()`

// identify asks a node who it is; it refuses one that does not lead, and one of another system.
func identify(ctx context.Context, conn *pgconn.PgConn, shard Shard, node string) (started string, err error) {
	results, err := conn.Exec(ctx, selectIdentity).ReadAll()
	if err != nil {
		return "", err
	}
	row := results[0].Rows[0]
	if want := shard.Known.expected(); want != "" && string(row[1]) != want {
		return "", &OtherSystemError{Shard: shard, Node: node, Want: want, Got: string(row[1])}
	}
	if string(row[0]) == "t" {
		return "", errStandby
	}
	return string(row[2]), nil
}

// nodes splits a configuration by the nodes its URL names. Every one keeps its ways of connecting (TLS or none).
func nodes(c *pgx.ConnConfig) (all []*pgx.ConnConfig) {
	for _, way := range append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...) {
		i := slices.IndexFunc(all, func(n *pgx.ConnConfig) bool { return n.Host == way.Host && n.Port == way.Port })
		if i >= 0 {
			all[i].Fallbacks = append(all[i].Fallbacks, way)
			continue
		}
		n := c.Copy()
		n.Host, n.Port, n.TLSConfig, n.Fallbacks = way.Host, way.Port, way.TLSConfig, nil
		all = append(all, n)
	}
	return all
}

func nodeName(c *pgx.ConnConfig) string { return fmt.Sprintf("%s:%d", c.Host, c.Port) }

// atLeader narrows a configuration to the node that leads and has every connection made with it check that it still
// does. Where the URL names one node, only what is known of the shard is checked.
func atLeader(ctx context.Context, shard Shard, c *pgx.ConnConfig) (*pgx.ConnConfig, error) {
	node := nodeName(c)
	if all := nodes(c); len(all) > 1 {
		leader, err := findLeader(ctx, shard, all)
		if err != nil {
			return nil, err
		}
		c, node = leader, nodeName(leader)
	} else if shard.Known.expected() == "" {
		return c, nil
	}
	if shard.Known != nil {
		c.DialFunc = shard.Known.dialing(c.DialFunc)
	}
	c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		started, err := identify(ctx, conn, shard, node)
		if err == nil {
			shard.Known.leadsTo(conn.Conn(), started)
		}
		return err
	}
	return c, nil
}

const (
	askNodes   = 5 * time.Second        // for all nodes of a shard to say whether they lead
	waitOthers = 500 * time.Millisecond // for the others once one has said that it does
)

// node is what one node said.
type node struct {
	config  *pgx.ConnConfig
	started string // of one that leads
	err     error
}

// findLeader asks all nodes at once which of them leads. One that cannot be reached does not count.
func findLeader(ctx context.Context, shard Shard, all []*pgx.ConnConfig) (*pgx.ConnConfig, error) {
	answers := askAll(ctx, shard, all)
	var leaders []node
	none := &NoLeaderError{Shard: shard}
	var other *OtherSystemError
	for _, a := range answers {
		twice := slices.ContainsFunc(leaders, func(l node) bool { return l.started == a.started })
		switch {
		case a.err == nil && !twice:
			leaders = append(leaders, a)
		case a.err != nil:
			none.Why = append(none.Why, a.err)
			errors.As(a.err, &other)
		}
	}
	switch {
	case len(leaders) == 1:
		shard.Known.leads(nodeName(leaders[0].config), leaders[0].started)
		return leaders[0].config, nil
	case len(leaders) > 1:
		e := &LeadersError{Shard: shard}
		for _, l := range leaders {
			e.Nodes = append(e.Nodes, nodeName(l.config))
		}
		shard.Known.leads("", "")
		return nil, e
	case other != nil:
		return nil, other
	}
	return nil, none
}

// askAll gives every node's answer in the order of the URL.
func askAll(ctx context.Context, shard Shard, all []*pgx.ConnConfig) []node {
	whole, cancel := context.WithTimeout(ctx, askNodes)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	answers := make([]node, len(all))
	said := make(chan int, len(all))
	var mu sync.Mutex
	for i, c := range all {
		answers[i] = node{config: c, err: fmt.Errorf("%s: no answer", nodeName(c))}
		asking.Go(func() {
			started, err := askNode(whole, shard, c)
			mu.Lock()
			defer mu.Unlock()
			answers[i].started, answers[i].err = started, err
			said <- i
		})
	}
	var late <-chan time.Time
	for range all {
		select {
		case i := <-said:
			mu.Lock()
			if answers[i].err == nil && late == nil {
				late = time.After(waitOthers)
			}
			mu.Unlock()
			continue
		case <-late:
		case <-whole.Done():
		}
		break
	}
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(answers)
}

func askNode(ctx context.Context, shard Shard, c *pgx.ConnConfig) (started string, err error) {
	c = c.Copy()
	c.AfterConnect, c.OnNotice = nil, nil
	c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) (err error) {
		started, err = identify(ctx, conn, shard, nodeName(c))
		return err
	}
	conn, err := pgconn.ConnectConfig(ctx, &c.Config)
	if err != nil {
		return "", &openError{err}
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	_ = conn.Close(ctx) // that it was broken already does not matter
	return started, nil
}

// FindLeader asks the nodes of a shard whose URL names several which of them leads, and ends what is open to any other:
// a session made before a standby was promoted would go on to write where the shard does not lead any more. Host and
// port are of the leader; empty where the URL names one node, which is not asked.
func FindLeader(ctx context.Context, shard Shard, app string) (host string, port uint16, err error) {
	c, err := Config(shard, Reader, app)
	if err != nil {
		return "", 0, err
	}
	all := nodes(c)
	if len(all) == 1 {
		return "", 0, nil
	}
	if c, err = findLeader(ctx, shard, all); err != nil {
		return "", 0, err
	}
	return c.Host, c.Port, nil
}
