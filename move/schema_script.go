package move

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"pgreshard/pg"
)

// transactionTimeout is the version whose pg_restore begins every session with `SET transaction_timeout`, which older
// servers refuse.
const transactionTimeout = 17

// refusesTool says that the server does not understand how this pg_restore begins. Then it writes its statements down and
// they are run here.
func (d *Dump) refusesTool(ctx context.Context, server int) bool {
	return server < transactionTimeout && toolMajor(ctx, d.restore) >= transactionTimeout
}

// runWritten restores the entries given by statements pg_restore writes down: together in one transaction or, of
// indexes, each in its own, one after another.
func (d *Dump) runWritten(ctx context.Context, dest pg.Shard, phase Phase, use []entry) error {
	conn, err := pg.Open(ctx, dest, pg.Admin, d.opts.App)
	if err != nil {
		return err
	}
	defer pg.Close(conn)
	parts := [][]entry{use}
	if phase.builds() {
		parts = nil
		for i := range use {
			parts = append(parts, use[i:i+1])
		}
	}
	for _, part := range parts {
		script, err := d.written(ctx, part)
		if err != nil {
			return err
		}
		if err := conn.PgConn().Exec(ctx, script).Close(); err != nil { // several statements: one transaction
			return fmt.Errorf("what pg_restore writes down: %w", err)
		}
	}
	return nil
}

// written is what pg_restore would do, as SQL.
func (d *Dump) written(ctx context.Context, use []entry) (string, error) {
	list, err := writeUseList(d.opts.Dir, use)
	if err != nil {
		return "", err
	}
	defer os.Remove(list)
	cmd := exec.CommandContext(ctx, d.restore, append(d.restoreArgs(list), "--file=-", d.archive)...)
	cmd.Env = toolEnv()
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = &ToolError{Program: "pg_restore", Said: string(exit.Stderr), Err: err}
		}
		return "", err
	}
	return forOlder(out), nil
}

// forOlder leaves out the one setting of the preamble that is unknown, and psql's commands around the script.
func forOlder(script []byte) string {
	var b bytes.Buffer
	preamble := true
	for line := range bytes.Lines(script) {
		switch {
		case bytes.HasPrefix(line, []byte(`\restrict `)), bytes.HasPrefix(line, []byte(`\unrestrict `)):
		case preamble && bytes.HasPrefix(line, []byte("SET transaction_timeout ")):
			preamble = false
		default:
			b.Write(line)
		}
	}
	return b.String()
}
