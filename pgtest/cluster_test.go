package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestASharedClusterGivesEachTestItsOwnDatabase(t *testing.T) {
	t.Parallel()
	a, b := Shared(t).Database(t), Shared(t).Database(t)
	a.Exec(t, `create table x (i int, s text); insert into x values (1, 'one'), (2, null)`)
	if got := fmt.Sprint(a.Query(t, `select i, s from x order by i`)); got != `[[1 one] [2 \N]]` {
		t.Errorf("rows %s", got)
	}
	if got := fmt.Sprint(a.Query(t, `select s from x where i = $1`, 1)); got != `[[one]]` {
		t.Errorf("rows %s", got)
	}
	if got := b.Query(t, `select 1 from pg_class where relname = 'x'`); len(got) != 0 {
		t.Errorf("the other database has the table too")
	}
}

func TestADatabaseWithASlotInUseIsDropped(t *testing.T) {
	t.Parallel()
	c := Shared(t)
	var name string
	t.Run("uses it", func(t *testing.T) {
		streamed := make(chan error)
		t.Cleanup(func() { <-streamed }) // runs after the drop, which is what ends the stream
		db := c.Database(t)
		name = db.Name
		db.Exec(t, `select pg_create_logical_replication_slot($1, 'pgoutput')`, name+"_s")
		conf, err := pgx.ParseConfig(db.URL())
		if err != nil {
			t.Fatal(err)
		}
		conf.RuntimeParams["replication"] = "database"
		conf.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		repl, err := pgx.ConnectConfig(t.Context(), conf)
		if err != nil {
			t.Fatal(err)
		}
		db.Exec(t, `create publication p for all tables`)
		start := fmt.Sprintf(`START_REPLICATION SLOT %s_s LOGICAL 0/0 (proto_version '1', publication_names 'p')`, name)
		go func() {
			streamed <- errors.Join(repl.PgConn().Exec(context.Background(), start).Close(), repl.Close(context.Background()))
		}()
		for len(db.Query(t, `select 1 from pg_replication_slots where slot_name = $1 and active`, name+"_s")) == 0 {
			time.Sleep(time.Millisecond)
		}
	})
	admin := &DB{Cluster: c, Name: "postgres", addr: c.Addr()}
	if got := admin.Query(t, `select datname from pg_database where datname = $1`, name); len(got) != 0 {
		t.Errorf("database left: %v", got)
	}
	if got := admin.Query(t, `select slot_name from pg_replication_slots where database = $1`, name); len(got) != 0 {
		t.Errorf("slot left: %v", got)
	}
}

func TestAServerIsStoppedKilledAndStartedAgain(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	db := c.Database(t)
	db.Exec(t, `create table x (i int)`)
	steps := []struct {
		name string
		do   func() error
	}{
		{"a fast restart", func() error { return c.Restart("fast") }},
		{"an immediate restart", func() error { return c.Restart("immediate") }},
		{"kill -9 of every process", func() error {
			if err := c.Kill(); err != nil {
				return err
			}
			return c.Start()
		}},
	}
	for i, step := range steps {
		db.Exec(t, `insert into x values ($1)`, i)
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := db.Query(t, `select count(*) from x`); got[0][0] != fmt.Sprint(i+1) {
			t.Errorf("after %s: %v rows", step.name, got)
		}
	}
	if err := c.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Connect(t.Context()); err == nil {
		t.Errorf("a stopped server answers")
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
}

func TestADurableClusterHasFsyncOn(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Durable: true, Settings: map[string]string{"work_mem": "7MB"}})
	db := c.Database(t)
	if got := fmt.Sprint(db.Query(t, `show fsync`), db.Query(t, `show work_mem`)); got != "[[on]] [[7MB]]" {
		t.Errorf("fsync, work_mem: %s", got)
	}
}

func TestAWrongSettingIsAnErrorThatShowsTheLog(t *testing.T) {
	t.Parallel()
	_, err := New(t.Context(), Options{Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("error: %v", err)
	}
}

func TestAMissingVersionIsAnErrorWithAHint(t *testing.T) {
	t.Parallel()
	_, err := New(t.Context(), Options{Version: 3})
	if err == nil || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("error: %v", err)
	}
}

// helperVariable makes the test binary start a cluster, print where it is and wait to be killed.
const helperVariable = "PGTEST_HELPER_PROCESS"

// TestMain is the helper process where it is asked to be.
func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) == "" {
		goleak.VerifyTestMain(m)
	}
	c, err := New(context.Background(), Options{})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(c.pid, c.keep.Dir)
	select {}
}

func TestKillOfTheProcessLeavesNoServerAndNoDirectory(t *testing.T) {
	t.Parallel()
	helper := exec.CommandContext(t.Context(), os.Args[0])
	helper.Env = append(os.Environ(), helperVariable+"=1")
	out, err := helper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	var pid int
	var dir string
	if n, _ := fmt.Sscan(line, &pid, &dir); n != 2 {
		t.Fatalf("helper printed %q (%v)", line, err)
	}
	if _, err := os.Stat(dir); err != nil || gone(pid) {
		t.Fatalf("the helper's cluster does not run: %v", err)
	}
	children := childrenOf(pid)
	if err := helper.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = helper.Wait()
	deadline := time.Now().Add(20 * time.Second)
	left := func() bool {
		_, err := os.Stat(dir)
		for _, child := range append(children, pid) {
			if !gone(child) {
				return true
			}
		}
		return err == nil
	}
	for left() {
		if time.Now().After(deadline) {
			t.Fatalf("server %d or directory %s is still there", pid, dir)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestAStandbyFollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	db := c.Database(t)
	db.Exec(t, `create table x (i int); insert into x values (1)`)
	s := c.Standby(t)
	db.Exec(t, `insert into x values (2)`)
	at, err := c.Position(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CatchUp(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	copied := &DB{Cluster: s, Name: db.Name, addr: s.Addr()}
	if got := fmt.Sprint(copied.Query(t, `select i from x order by i`)); got != "[[1] [2]]" {
		t.Errorf("standby has %s", got)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	copied.Exec(t, `insert into x values (3)`)
}

func TestADirectoryWhoseKeeperWasKilledIsSweptByTheNextProcess(t *testing.T) {
	t.Parallel()
	base, err := os.MkdirTemp("", "sweep")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chmod(base, 0o777); err != nil {
		t.Fatal(err)
	}
	killed, alive := keeperIn(t, base), keeperIn(t, base)
	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed.Close()
	sweep(base)
	if _, err := os.Stat(killed.Dir); err == nil {
		t.Errorf("the directory of a killed keeper is still there")
	}
	if _, err := os.Stat(alive.Dir); err != nil {
		t.Errorf("the directory of a living keeper is gone: %v", err)
	}
}

func keeperIn(t *testing.T, base string) *keeper {
	k, err := newKeeper(base, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}
