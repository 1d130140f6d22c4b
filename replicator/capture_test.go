package replicator

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"pgreshard/pgtest"
)

var capture = flag.Bool("capture", false, "write what a server sends into the fuzz corpus")

// TestCaptureSeeds makes the corpus of FuzzDecode anew: one file for each transaction of the test of every kind of
// change, preceded by the tables' descriptions.
func TestCaptureSeeds(t *testing.T) {
	if !*capture {
		t.Skip("run with -capture to make the fuzz corpus anew")
	}
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, everythingTables)
	s := publish(t, db, everythingPublished...)
	for _, sql := range everythingWritten {
		db.Exec(t, sql)
	}
	c, err := New(s.config()).connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var relations, transaction [][]byte
	for n := 0; ; {
		msg, err := c.conn.ReceiveMessage(ctx)
		if err != nil {
			if n == 0 {
				t.Error(err)
			}
			return
		}
		data, ok := msg.(*pgproto3.CopyData)
		if !ok || data.Data[0] != 'w' {
			continue
		}
		m := bytes.Clone(data.Data[25:])
		if m[0] == 'R' {
			relations = append(relations, m)
			continue
		}
		if len(m) > 300 {
			continue // a long value teaches the fuzzer nothing
		}
		if transaction = append(transaction, m); m[0] == 'C' {
			n++
			writeSeed(t, fmt.Sprintf("captured%02d", n), join(append(relations, transaction...)...))
			transaction = nil
		}
	}
}

func writeSeed(t *testing.T, name string, data []byte) {
	t.Helper()
	dir := filepath.Join("testdata", "fuzz", "FuzzDecode")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "go test fuzz v1\n[]byte(%q)\n", data), 0o644); err != nil {
		t.Fatal(err)
	}
}
