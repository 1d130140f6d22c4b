package move

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
)

// node is one shard of either side; the zero node is the home.
type node struct {
	source bool
	number int
}

func (n node) String() string {
	if n.source {
		return fmt.Sprintf("source shard %d", n.number)
	}
	return fmt.Sprintf("destination shard %d", n.number)
}

// health is what is known of every server; Move.mu guards it.
type health struct {
	silent  map[node]string     // which do not answer, and why
	slots   map[int]*slotHealth // by source; nil where the slot is not there
	disks   map[int]int64       // by source, as first seen: room for log with what the slot kept then; 0 where it cannot be seen
	pressed map[node]pressure   // what applications' sessions do
	stalls  map[*stall]struct{} // work that was interrupted and is tried again
	counts  map[int]int64       // by destination shard: rows written there, once there is no way back
}

// slotHealth is what a source's server says of our slot; nil where it does not say.
type slotHealth struct {
	confirmed string
	retained  *int64 // bytes of log it holds back
	safe      *int64 // bytes the server may still write before the slot is lost
	limit     *int64 // bytes the server lets a slot hold back
	budget    int64  // bytes we let it hold back
}

func (m *Move) allNodes() (all []node) {
	for n := range m.Source.Shards {
		all = append(all, node{true, n})
	}
	for n := range m.Destination.Shards {
		all = append(all, node{false, n})
	}
	return all
}

func (m *Move) sourceNodes() (all []node) {
	for n := range m.Source.Shards {
		all = append(all, node{true, n})
	}
	return all
}

func (m *Move) shardOf(n node) pg.Shard {
	if n.source {
		return m.Source.Shards[n.number]
	}
	return m.Destination.Shards[n.number]
}

// nodeWords names a node without anything of its URL but host and port.
func (m *Move) nodeWords(n node) string {
	named := n
	if m.forward != nil { // its sources are the move's destination
		named.source = !n.source
	}
	return fmt.Sprintf("%s at %s", named, m.node(m.shardOf(n)))
}

// sourceWords names what a stream comes from.
func (m *Move) sourceWords(source int) string {
	if m.forward != nil {
		return fmt.Sprintf("destination shard %d", source)
	}
	return fmt.Sprintf("source %d", source)
}

const (
	lookEvery   = time.Second
	lookTimeout = 3 * time.Second
)

// watchNodes looks at every node once a second, each on a session of its own that no other work holds up, and samples
// the rates, until ctx ends. It only looks: what is down is waited for by whoever needs it. But a slot that keeps too
// much ends the move, through stop.
func (m *Move) watchNodes(ctx context.Context, stop context.CancelCauseFunc) {
	var all sync.WaitGroup
	for _, n := range m.allNodes() {
		all.Go(func() {
			var conn *pgx.Conn
			told := 0
			for ctx.Err() == nil {
				conn = m.look(ctx, n, conn)
				if n.source {
					m.keepBudget(n.number, &told, stop)
				}
				_ = sleep(ctx, lookEvery)
			}
			pg.Close(conn)
		})
	}
	for sleep(ctx, sampleEvery) == nil {
		m.sample(time.Now())
	}
	all.Wait()
}

// lookAtNodes looks at every node once.
func (m *Move) lookAtNodes(ctx context.Context) {
	_ = atOnce(ctx, len(m.allNodes()), func(ctx context.Context, i int) error {
		pg.Close(m.look(ctx, m.allNodes()[i], nil))
		return nil
	})
}

// slotLimit is how many bytes of log the server lets a slot hold back, null for any number.
const slotLimit = `(select nullif(setting::bigint, -1) << 20 from pg_settings where name = 'max_slot_wal_keep_size')`

const selectSlotHealth = `select pg_current_wal_insert_lsn()::text, coalesce(confirmed_flush_lsn::text, ''),
		pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint, safe_wal_size,
		` + slotLimit + `
	from pg_replication_slots where slot_name = $1 and database = current_database()`

// look asks a node whether it is there, and a source about our slot. It takes a session, nil for none, and gives back
// the one to use the next time.
func (m *Move) look(ctx context.Context, n node, conn *pgx.Conn) *pgx.Conn {
	bounded, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, _, err := pg.FindLeader(bounded, m.shardOf(n), m.app())
	if err == nil && conn == nil {
		conn, err = pg.Open(bounded, m.shardOf(n), pg.Reader, m.app())
	}
	var slot *slotHealth
	var end pg.LSN // of the source's log
	switch {
	case err != nil:
	case n.source:
		var s slotHealth
		if err = conn.QueryRow(bounded, selectSlotHealth, m.slot(n.number)).Scan(&end, &s.confirmed, &s.retained, &s.safe, &s.limit); err == nil {
			s.budget = m.budgetFor(s.limit, m.diskOf(bounded, n.number, conn, s.retained))
			slot = &s
		} else if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
	case m.wayBackLost():
		err = m.count(bounded, n.number, conn)
	default:
		err = conn.Ping(bounded)
	}
	if err == nil {
		err = m.press(bounded, n, conn)
	}
	if ctx.Err() != nil {
		return conn
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.health.silent == nil {
		m.health.silent, m.health.slots = map[node]string{}, map[int]*slotHealth{}
	}
	delete(m.health.silent, n)
	if n.source {
		m.health.slots[n.number] = slot
		m.rates.slot(time.Now(), n.number, end, slot)
		if f := m.followerOf(n.number); f != nil && slot != nil {
			f.behind.asked(end, time.Now())
		}
	}
	if err == nil {
		return conn
	}
	m.health.silent[n] = silence(err)
	pg.Close(conn)
	return nil
}

// silence says in a few words why a node does not answer.
func silence(err error) string {
	var server *pgconn.PgError
	var network *net.OpError
	var leaders *pg.LeadersError
	switch {
	case errors.As(err, &leaders):
		return strings.Join(leaders.Nodes, " and ") + " both say they lead"
	case errors.As(err, &server):
		return server.Message
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err):
		return fmt.Sprintf("nothing was heard for %.0f s", lookTimeout.Seconds())
	case errors.As(err, &network):
		return network.Err.Error()
	}
	return oneLine(err)
}

// slow is how long a shard may take for what it is asked and not be named.
const slow = 3 * time.Second

// waiting lists what keeps the move from going on while it tries again: nodes that do not answer, else work that was
// interrupted, and shards the streams wait for. m.mu is held.
func (m *Move) waiting() (all []string) {
	for _, n := range m.allNodes() {
		if why, ok := m.health.silent[n]; ok {
			all = append(all, m.nodeWords(n)+" does not answer: "+why)
		}
	}
	if len(all) > 0 {
		return all
	}
	for s := range m.health.stalls {
		if s.lasts() {
			all = append(all, "interrupted, trying again: "+s.why)
		}
	}
	for _, f := range m.followers {
		for shard, stats := range f.sink.Stats() {
			if stats.Waits > slow {
				all = append(all, fmt.Sprintf("%s has not answered for %.0f s what %s's changes ask of it: a lock there, or a server that is slow",
					m.nodeWords(node{number: shard}), stats.Waits.Seconds(), m.sourceWords(f.source)))
			}
		}
	}
	return all
}

// stall is one piece of work that may be interrupted and tried again.
type stall struct {
	why   string    // empty: it was not interrupted
	again time.Time // when it was last begun again; zero while it waits for that
}

// steady is how long work must have gone on to count as no longer interrupted.
const steady = 5 * time.Second

func (s *stall) lasts() bool {
	return s.why != "" && (s.again.IsZero() || time.Since(s.again) < steady)
}

// interrupted and resumes note where a stall stands; ends forgets it.
func (m *Move) interrupted(s *stall, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.health.stalls == nil {
		m.health.stalls = map[*stall]struct{}{}
	}
	*s = stall{why: oneLine(err)}
	m.health.stalls[s] = struct{}{}
}

func (m *Move) resumes(s *stall) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.again = time.Now()
}

func (m *Move) ends(s *stall) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.health.stalls, s)
}
