package pg_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// shard is a shard whose URL names three nodes, each a relay behind which another server stands at every change.
type shard struct {
	servers map[string]*pgtest.Cluster // "leader" and "promoted" lead, "standby" follows, "foreign" leads another system
	relays  []*pgtest.Relay
	behind  []string // the server behind each relay; "" for none
	pg.Shard
}

func newShard(t *testing.T) *shard {
	s := &shard{servers: map[string]*pgtest.Cluster{
		// Two of one system that both lead, as a leader and a standby of it that was promoted are.
		"leader": pgtest.Start(t, pgtest.Options{}), "promoted": pgtest.Start(t, pgtest.Options{}),
		"foreign": pgtest.Start(t, pgtest.Options{Foreign: true}),
	}}
	for _, c := range s.servers {
		if _, err := c.NewDatabase(t.Context(), "app"); err != nil {
			t.Fatal(err)
		}
		conn := s.direct(t, c)
		if _, err := conn.Exec(t.Context(), `create table written (round int)`); err != nil {
			t.Fatal(err)
		}
	}
	s.servers["standby"] = s.servers["leader"].Standby(t)
	var hosts []string
	for range 3 {
		r := pgtest.NewRelay(t, s.servers["leader"].Addr())
		s.relays, s.behind, hosts = append(s.relays, r), append(s.behind, "leader"), append(hosts, r.Addr())
	}
	s.Shard = pg.FixedURL(1, "postgres://postgres@"+strings.Join(hosts, ",")+"/app?sslmode=disable")
	s.Side, s.Known = "destination", new(pg.Known)
	var system string
	if err := s.direct(t, s.servers["leader"]).QueryRow(t.Context(), `select system_identifier || '/app' from pg_control_system()`).Scan(&system); err != nil {
		t.Fatal(err)
	}
	s.Known.Expect(system)
	return s
}

func (s *shard) direct(t *testing.T, c *pgtest.Cluster) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.URL("app"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Close(conn) })
	return conn
}

// put changes what stands behind the relays; who is connected to what stood there is cut off where cut is set, and
// stays connected to it else, as to a leader that does not know yet that another was promoted.
func (s *shard) put(cut bool, servers ...string) {
	for i, name := range servers {
		if s.behind[i] == name {
			continue
		}
		s.behind[i] = name
		s.relays[i].Refuse(name == "")
		if name != "" {
			s.relays[i].SetTarget(s.servers[name].Addr())
		}
		if cut || name == "" {
			s.relays[i].Cut()
		}
	}
}

// leaders are the servers that lead and are this shard's, each once.
func (s *shard) leaders() (names []string) {
	for _, name := range s.behind {
		if (name == "leader" || name == "promoted") && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func TestNothingIsOpenedWhereTheShardDoesNotLead(t *testing.T) {
	t.Parallel()
	s := newShard(t)
	t.Run("table", func(t *testing.T) { opened(t, s) })
	t.Run("random", func(t *testing.T) { written(t, s) })
}

func opened(t *testing.T, s *shard) {
	for _, c := range []struct {
		name    string
		behind  []string
		opens   string // the server; "" for none
		says    string
		passing bool // an error worth another try
	}{
		{"the first leads", []string{"leader", "standby", "standby"}, "leader", "", true},
		{"the last leads", []string{"standby", "standby", "leader"}, "leader", "", true},
		{"the others are down", []string{"", "leader", ""}, "leader", "", true},
		{"another was promoted", []string{"", "standby", "promoted"}, "promoted", "", true},
		{"one node twice", []string{"leader", "leader", "standby"}, "leader", "", true},
		{"a foreign node beside the leader", []string{"foreign", "leader", ""}, "leader", "", true},
		{"two lead", []string{"promoted", "standby", "leader"}, "", s.relays[0].Addr() + " and " + s.relays[2].Addr() + " all say they lead", true},
		{"nobody leads", []string{"standby", "", "standby"}, "", "no node of destination shard 1 leads: ", true},
		{"all are down", []string{"", "", ""}, "", "no node of destination shard 1 leads: ", true},
		{"only a foreign one leads", []string{"standby", "foreign", ""}, "", s.relays[1].Addr() + " has the system identifier and database ", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.put(true, c.behind...)
			conn, err := pg.Open(t.Context(), s.Shard, pg.Writer, "test")
			defer pg.Close(conn)
			replication, errReplication := pg.OpenReplication(t.Context(), s.Shard, "test", nil)
			if replication != nil {
				defer replication.Close(t.Context())
			}
			if c.opens == "" {
				for _, err := range []error{err, errReplication} {
					if err == nil || !strings.Contains(err.Error(), c.says) || pg.Transient(err) != c.passing || strings.Contains(err.Error(), "postgres://") {
						t.Errorf("got %v, transient %v, want %s", err, pg.Transient(err), c.says)
					}
				}
				return
			}
			if err != nil || errReplication != nil {
				t.Fatal(err, errReplication)
			}
			var port int
			if err := conn.QueryRow(t.Context(), `select inet_server_port()`).Scan(&port); err != nil || port != s.servers[c.opens].Port {
				t.Errorf("on port %d, %v; want %d", port, err, s.servers[c.opens].Port)
			}
			if at := s.relays[slices.Index(c.behind, c.opens)].Addr(); s.Known.Leader() != at {
				t.Errorf("the leader is said to be %s, want %s", s.Known.Leader(), at)
			}
		})
	}
}

// written: however the leader changes, nothing is written to a node that does not lead, or while two do: each row carries the
// number of the change it was written after, and is at the end on the server that led alone then. Sessions stay open over
// the changes, as a worker's do, and every change is looked at, as a worker does each second.
func written(t *testing.T, s *shard) {
	seeds, changes := 1, 40
	if n, err := strconv.Atoi(os.Getenv("LEADER_SEEDS")); err == nil { // make leaders
		seeds, changes = n, 300
	}
	for _, seed := range pgtest.Seeds(t, "LEADER_SEED", seeds) {
		t.Logf("LEADER_SEED=%d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for _, c := range s.servers {
			if c != s.servers["standby"] {
				if _, err := s.direct(t, c).Exec(t.Context(), `truncate written`); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := map[string][]string{}
		var held []*pgx.Conn
		var alone, contested int
		for round := range changes {
			var behind []string
			for range s.relays {
				behind = append(behind, []string{"leader", "leader", "promoted", "standby", "standby", "foreign", ""}[random.IntN(7)])
			}
			s.put(random.IntN(3) == 0, behind...)
			leaders := s.leaders()
			if _, _, err := pg.FindLeader(t.Context(), s.Shard, "test"); (err == nil) != (len(leaders) == 1) {
				t.Fatalf("change %d, %v: %v", round, behind, err)
			}
			conn, err := pg.Open(t.Context(), s.Shard, pg.Writer, "test")
			var two *pg.LeadersError
			switch {
			case len(leaders) == 1 && err != nil, len(leaders) != 1 && err == nil, (len(leaders) == 2) != errors.As(err, &two):
				t.Fatalf("change %d, %v: %v", round, behind, err)
			case len(leaders) == 2:
				contested++
			}
			if conn != nil {
				alone++
				held = append(held, conn)
			}
			if len(leaders) == 0 { // none was found, and so what is open stays: a leader may just be full
				continue
			}
			held = slices.DeleteFunc(held, func(conn *pgx.Conn) bool {
				_, err := conn.Exec(t.Context(), `insert into public.written values ($1)`, round)
				switch {
				case err == nil && len(leaders) == 1:
					want[leaders[0]] = append(want[leaders[0]], fmt.Sprint(round))
				case err == nil:
					t.Errorf("change %d, %v: written", round, behind)
				}
				return err != nil
			})
		}
		for _, conn := range held {
			pg.Close(conn)
		}
		t.Logf("%d changes, %d with one leader, %d with two; rows written: %d to one server, %d to the other", changes, alone, contested, len(want["leader"]), len(want["promoted"]))
		if alone == 0 || contested == 0 || len(want["leader"]) == 0 || len(want["promoted"]) == 0 {
			t.Error("the changes were too tame")
		}
		for name, c := range s.servers {
			if name == "standby" {
				continue
			}
			rows, err := s.direct(t, c).Query(t.Context(), `select round::text from written order by ctid`)
			if err != nil {
				t.Fatal(err)
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil || !slices.Equal(got, want[name]) {
				t.Errorf("%s holds %v, %v; want %v", name, got, err, want[name])
			}
		}
	}
}
