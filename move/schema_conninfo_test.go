package move

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func TestConnectionStringsAreReadAsLibpqReadsThem(t *testing.T) {
	t.Parallel()
	type params = map[string]string
	for s, want := range map[string]params{
		`postgres://mover:p%40ss%3A@10.0.0.1,10.0.0.2:6000/prod?sslmode=verify-full&options=-c%20a%3Db`: {"user": "mover", "password": "p@ss:", "host": "10.0.0.1,10.0.0.2",
			"port": ",6000", "dbname": "prod", "sslmode": "verify-full", "options": "-c a=b"},
		`postgresql://%2Fvar%2Frun/db`:             {"host": "/var/run", "dbname": "db"},
		`postgres://[::1]:5433`:                    {"host": "::1", "port": "5433"},
		`postgres:///db?host=/tmp&user=me`:         {"host": "/tmp", "user": "me", "dbname": "db"},
		`host=a port = 5 password='it\'s a \\ b'`:  {"host": "a", "port": "5", "password": `it's a \ b`},
		`host=a  dbname='' user=x\ y sslmode=off `: {"host": "a", "dbname": "", "user": "x y", "sslmode": "off"},
	} {
		got, err := parseConninfo(s)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%s\n got %v, %v\nwant %v", s, got, err, want)
		}
	}
	for _, s := range []string{`nonsense secret`, `password='secret`, `postgres://u:%zz@h/secret`} {
		if got, err := parseConninfo(s); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
}

func TestTheConnectionFileIsPrivateAndRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for password, inFile := range map[string]bool{"secret": true, "secret ": false, "sec\nret": false} {
		path, env, err := writeService(dir, "app", `host=h password='`+password+`'`, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(text), "password=secret\n") != inFile {
			t.Errorf("%q: %s, %v", password, text, err)
		}
		found := false
		for _, v := range env {
			found = found || v == "PGPASSWORD="+password
		}
		if found == inFile {
			t.Errorf("%q in the environment: %v", password, found)
		}
	}
}

// The cluster asks for a password here, and the role's settings would make pg_restore fail.
func TestAPasswordAndAServiceReachThePrograms(t *testing.T) {
	cluster := pgtest.Start(t, pgtest.Options{})
	source, dest := cluster.Database(t), cluster.Database(t)
	source.Exec(t, `create role "odd mover" superuser login password 'p '' \ w'; alter role "odd mover" set default_transaction_read_only = on`)
	source.Exec(t, `create table public.a (id int primary key)`)
	hba := filepath.Join(cluster.DataDir, "pg_hba.conf")
	was, err := os.ReadFile(hba)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hba, append([]byte("host all \"odd mover\" all scram-sha-256\n"), was...), 0o600); err != nil {
		t.Fatal(err)
	}
	source.Exec(t, `select pg_reload_conf()`)

	services := filepath.Join(t.TempDir(), "services.conf")
	if err := os.WriteFile(services, []byte("[dest]\nhost=127.0.0.1\nuser=odd mover\npassword=wrong\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGSERVICEFILE", services)
	port := strings.TrimPrefix(cluster.Addr(), "127.0.0.1:")
	d, err := dumpOf(t, source, SchemaOptions{Tables: names("a")})
	if err != nil {
		t.Fatal(err)
	}
	dial := func(password string) error {
		shard := pg.FixedURL(0, `service=dest port=`+port+` dbname=`+dest.Name+` sslmode=disable password='`+password+`'`)
		return d.Restore(t.Context(), shard, adminTo(t, dest, pg.Admin), PhaseTables, false)
	}
	if err := dial("nope-secret"); err == nil || strings.Contains(err.Error(), "nope-secret") || !strings.Contains(err.Error(), "authentication failed") {
		t.Errorf("a wrong password: %v", err)
	}
	if err := dial(`p \' \\ w`); err != nil {
		t.Error(err)
	}
}
