package pgtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// throughRelay is a new database and the same one behind a relay.
func throughRelay(t *testing.T) (direct, via *DB, r *Relay) {
	direct = Shared(t).Database(t)
	r = NewRelay(t, direct.Cluster.Addr())
	return direct, direct.Via(r), r
}

func TestARelayPassesEveryByteOfACopyBothWays(t *testing.T) {
	t.Parallel()
	direct, via, r := throughRelay(t)
	direct.Exec(t, `create table x (b bytea)`)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var rows bytes.Buffer
	for range 300 {
		value := make([]byte, random.IntN(1<<random.IntN(19)))
		for i := range value {
			value[i] = byte(random.Uint32())
		}
		fmt.Fprintf(&rows, "\\\\x%x\n", value)
	}
	conn := via.Conn(t).PgConn()
	if _, err := conn.CopyFrom(t.Context(), bytes.NewReader(rows.Bytes()), `copy x from stdin`); err != nil {
		t.Fatal(err)
	}
	read := func(db *DB) (sum [32]byte) {
		hash := sha256.New()
		if _, err := db.Conn(t).PgConn().CopyTo(t.Context(), hash, `copy (select b from x order by md5(b)) to stdout (format binary)`); err != nil {
			t.Fatal(err)
		}
		return [32]byte(hash.Sum(nil))
	}
	if read(direct) != read(via) {
		t.Errorf("what came through the relay differs")
	}
	if c := r.Counts(); c.ToServer["CopyData"].Bytes < rows.Len() || c.ToClient["CopyData"].Messages < 300 {
		t.Errorf("counts: %+v", c)
	}
}

func TestRoundTripsAreCountedAsTheClientWaits(t *testing.T) {
	t.Parallel()
	_, via, r := throughRelay(t)
	conn := via.Conn(t)
	r.ResetCounts()
	if _, err := conn.Exec(t.Context(), `select 1`); err != nil {
		t.Fatal(err)
	}
	if got := r.Counts().RoundTrips; got != 1 {
		t.Errorf("a simple query: %d round trips", got)
	}
	r.ResetCounts()
	batch := &pgx.Batch{}
	for i := range 500 {
		batch.Queue(`select $1::int, repeat('x', 1000)`, i)
	}
	conn.Config().DefaultQueryExecMode = pgx.QueryExecModeExec
	if err := conn.SendBatch(t.Context(), batch).Close(); err != nil {
		t.Fatal(err)
	}
	if got := r.Counts(); got.RoundTrips > 3 || got.ToClient["DataRow"].Messages != 500 {
		t.Errorf("a pipeline of 500: %+v", got)
	}
}

func TestADelayIsFeltPerRoundTripAndNotPerByte(t *testing.T) {
	t.Parallel()
	_, via, r := throughRelay(t)
	conn := via.Conn(t)
	const oneWay = 30 * time.Millisecond
	r.Delay(ToServer, oneWay)
	r.Delay(ToClient, oneWay)
	begin := time.Now()
	for range 3 {
		if _, err := conn.Exec(t.Context(), `select 1`); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begin); took < 6*oneWay {
		t.Errorf("3 round trips took %s", took)
	}
	begin = time.Now()
	n, err := conn.PgConn().CopyTo(t.Context(), io.Discard, `copy (select repeat('x', 1000) from generate_series(1, 50000)) to stdout`)
	if took := time.Since(begin); err != nil || n.RowsAffected() != 50000 || took > 5*time.Second {
		t.Errorf("50 MB took %s, %s, %v", took, n, err)
	}
}

func TestACommitWhoseAnswerIsCutHasHappened(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		rule Rule
		kept bool
	}{
		{"before COMMIT reaches the server", Rule{Direction: ToServer, Type: "Query", Contains: "commit", Where: Before, Do: Reset}, false},
		{"inside COMMIT", Rule{Direction: ToServer, Type: "Query", Contains: "commit", Where: Inside, Do: Reset}, false},
		{"before the answer", Rule{Direction: ToClient, Type: "CommandComplete", Contains: "COMMIT", Where: Before, Do: Reset}, true},
		{"inside the answer", Rule{Direction: ToClient, Type: "CommandComplete", Contains: "COMMIT", Where: Inside, Do: Close}, true},
		{"at the second answer of all", Rule{Direction: ToClient, Type: "CommandComplete", Nth: 2, Where: Before, Do: ResetClient}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			direct, via, r := throughRelay(t)
			direct.Exec(t, `create table x (i int)`)
			conn := via.Conn(t)
			fired := r.Add(test.rule)
			_, err := conn.Exec(t.Context(), `begin`)
			if err == nil {
				_, err = conn.Exec(t.Context(), `insert into x values (1)`)
			}
			if err == nil {
				_, err = conn.Exec(t.Context(), `commit`)
			}
			if err == nil {
				t.Fatal("nothing was cut")
			}
			<-fired
			want := "[[0]]"
			if test.kept {
				want = "[[1]]"
			}
			if got := fmt.Sprint(direct.Query(t, `select count(*) from x`)); got != want {
				t.Errorf("rows %s, want %s (%v)", got, want, err)
			}
		})
	}
}

func TestAResetOfTheClientLeavesTheBackend(t *testing.T) {
	t.Parallel()
	direct, via, r := throughRelay(t)
	direct.Exec(t, `create table x (i int)`)
	conn := via.Conn(t)
	pid := conn.PgConn().PID()
	r.Add(Rule{Direction: ToServer, Type: "Query", Contains: "insert", Where: After, Do: ResetClient, Then: func(Message) {
		r.Refuse(true) // pgx sends a cancel request for a connection that broke
	}})
	if _, err := conn.Exec(t.Context(), `insert into x select 1 from pg_sleep(0.1)`); err == nil {
		t.Fatal("the client was not reset")
	}
	for deadline := time.Now().Add(10 * time.Second); len(direct.Query(t, `select i from x`)) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the backend left behind did not commit")
		}
	}
	if got := direct.Query(t, `select 1 from pg_stat_activity where pid = $1`, pid); len(got) != 1 {
		t.Errorf("the backend has ended too")
	}
}

func TestAStallHoldsWithoutClosingAndResumes(t *testing.T) {
	t.Parallel()
	_, via, r := throughRelay(t)
	conn := via.Conn(t)
	stalled := r.Add(Rule{Direction: ToClient, Type: "DataRow", Where: Before, Do: Stall})
	answer := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), `select 1`)
		answer <- err
	}()
	<-stalled
	select {
	case err := <-answer:
		t.Fatalf("an answer came through the stall: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	r.Resume(ToClient)
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

func TestACancelRequestIsPassedOn(t *testing.T) {
	t.Parallel()
	direct, via, _ := throughRelay(t)
	conn := via.Conn(t)
	asked := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), `select pg_sleep(60)`)
		asked <- err
	}()
	for len(direct.Query(t, `select 1 from pg_stat_activity where pid = $1 and wait_event = 'PgSleep'`, conn.PgConn().PID())) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Error(err)
	}
	err := <-asked
	if pgErr := new(pgconn.PgError); !errors.As(err, &pgErr) || pgErr.Code != "57014" {
		t.Errorf("error %v", err)
	}
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func TestPrintedMessagesHoldNoValues(t *testing.T) {
	t.Parallel()
	_, via, r := throughRelay(t)
	var printed lockedBuffer
	r.Print(&printed)
	conn := via.Conn(t)
	if _, err := conn.Exec(t.Context(), `select 'secret1', 4711, E'it\'s secret2', $x$secret3$x$ as "a1"`); err != nil {
		t.Fatal(err)
	}
	if _, err := queryText(t.Context(), conn, `select $1::text, $2::int`, "secret4", 4711); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Exec(t.Context(), `select 'secret5'::int`)
	text := printed.String()
	for _, value := range []string{"secret", "4711"} {
		if strings.Contains(text, value) {
			t.Errorf("the text holds %q:\n%s", value, text)
		}
	}
	for _, part := range []string{"Query", "DataRow", "Bind", `select $1::text, $2::int`, "parameter sizes", "ERROR 22P02", "SELECT 1"} {
		if !strings.Contains(text, part) {
			t.Errorf("the text lacks %q:\n%s", part, text)
		}
	}
}

func TestReplicationPassesAndIsCutAtANamedMessage(t *testing.T) {
	t.Parallel()
	direct, via, r := throughRelay(t)
	direct.Exec(t, `create table x (i int); create publication p for table x`)
	direct.Exec(t, `select pg_create_logical_replication_slot($1, 'pgoutput')`, direct.Name)
	for i := range 3 {
		direct.Exec(t, `insert into x values ($1), ($1 + 100)`, i)
	}
	stream := func(db *DB) (messages string, err error) {
		conf, err := pgconn.ParseConfig(db.URL())
		if err != nil {
			t.Fatal(err)
		}
		conf.RuntimeParams["replication"] = "database"
		conn, err := pgconn.ConnectConfig(t.Context(), conf)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		start := fmt.Sprintf(`START_REPLICATION SLOT "%s" LOGICAL 0/0 (proto_version '1', publication_names 'p')`, direct.Name)
		conn.Frontend().SendQuery(&pgproto3.Query{String: start})
		if err := conn.Frontend().Flush(); err != nil {
			return "", err
		}
		for strings.Count(messages, "C") < 3 {
			m, err := conn.ReceiveMessage(t.Context())
			if err != nil {
				return messages, err
			}
			switch m := m.(type) {
			case *pgproto3.ErrorResponse:
				return messages, pgconn.ErrorResponseToPgError(m)
			case *pgproto3.CopyData:
				if m.Data[0] == 'w' {
					messages += string(m.Data[xlogDataHead])
				}
			}
		}
		return messages, nil
	}
	whole := func(db *DB) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			got, err := stream(db)
			if pgErr := new(pgconn.PgError); errors.As(err, &pgErr) && pgErr.Code == "55006" && time.Now().Before(deadline) {
				continue // the slot's last walsender has not ended yet
			}
			if got != "BRIICBIICBIIC" || err != nil {
				t.Errorf("stream %s, %v", got, err)
			}
			return
		}
	}
	whole(direct)
	fired := r.Add(Rule{Direction: ToClient, Type: "XLogData.Commit", Nth: 2, Where: Inside, Do: Reset})
	var cutAt string
	for cutAt == "" {
		cutAt, _ = stream(via)
	}
	<-fired
	if cutAt != "BRIICBII" {
		t.Errorf("cut after %s", cutAt)
	}
	whole(via)
	if got := r.Counts().ToClient; got["XLogData.Insert"].Messages == 0 || got["XLogData"].Messages == 0 {
		t.Errorf("counts %v", got)
	}
}

func TestARefusingRelayAndOneWithoutServerResetTheClient(t *testing.T) {
	t.Parallel()
	_, via, r := throughRelay(t)
	conn := via.Conn(t)
	r.Refuse(true)
	if _, err := via.Connect(t.Context()); err == nil {
		t.Errorf("connected to a relay that refuses")
	}
	if _, err := conn.Exec(t.Context(), `select 1`); err != nil {
		t.Errorf("an older connection broke: %v", err)
	}
	r.Refuse(false)
	r.SetTarget("127.0.0.1:1")
	if _, err := via.Connect(t.Context()); err == nil {
		t.Errorf("connected to a relay without a server")
	}
	r.Cut()
	if _, err := conn.Exec(t.Context(), `select 1`); err == nil {
		t.Errorf("a cut connection answers")
	}
}
