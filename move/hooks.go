package move

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
)

// Hooks are programs of the user's that run around a cutover, each a list of arguments, empty for none.
type Hooks struct {
	Timeout time.Duration // of each
	// BeforeFreeze runs once before the first freeze; where it fails there is no freeze. AfterUndo runs once
	// after the last, where none led to the switch, and also after a BeforeFreeze that failed: it may have done a part.
	BeforeFreeze, AfterUndo []string
	// AfterSwitch runs once the new layout is open. Where it fails it is repeated when the move is gone on with.
	AfterSwitch []string
}

// The names of hooks, in the configuration, the journal and PGRESHARD_STEP.
const (
	hookBefore = "before_freeze"
	hookUndo   = "after_undo"
	hookSwitch = "after_switch"
)

// stepOpen is the step that comes after a switch: the journal has it only where there was one.
const stepOpen = "open"

// HookStatus is what came of the last run of a hook.
type HookStatus struct {
	Name    string    `json:"hook"`
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
	Output  string    `json:"output"` // the end of what it wrote
	Error   string    `json:"error"`  // empty: it went well
}

// HookError means that a hook failed, or took longer than it may.
type HookError struct {
	Name string
	Err  error
}

func (e *HookError) Error() string {
	return fmt.Sprintf("hook %s: %v; hint: what it wrote is on the status page and in `pgreshard status --json`", e.Name, e.Err)
}

func (e *HookError) Unwrap() error { return e.Err }

const (
	hookOutput = 4 << 10 // bytes kept
	hookEnds   = 2 * time.Second
)

// hook runs one of the configured programs, journaled before and after; deadline is until when what it pauses may stay so.
func (m *Move) hook(ctx context.Context, name string, argv []string, deadline time.Time) error {
	if len(argv) == 0 {
		return nil
	}
	if err := m.note(ctx, name, "before"); err != nil {
		return err
	}
	file, err := m.layoutFile(ctx, name)
	if err != nil {
		return &HookError{name, err}
	}
	defer os.Remove(file)
	bounded, cancel := context.WithTimeout(ctx, m.Hooks.Timeout)
	defer cancel()
	said := &tail{limit: hookOutput}
	cmd := exec.CommandContext(bounded, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, hookEnds
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it leaves to let go at the deadline must outlive us
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = append(os.Environ(),
		"PGRESHARD_MOVE="+m.Name, "PGRESHARD_STEP="+name,
		"PGRESHARD_FROM="+strconv.Itoa(m.Source.Layout), "PGRESHARD_TO="+strconv.Itoa(m.Destination.Layout),
		"PGRESHARD_LAYOUT="+file, "PGRESHARD_DEADLINE="+strconv.FormatInt(deadline.Unix()+1, 10)) // whole seconds, never too early
	began := time.Now()
	err = cmd.Run()
	if bounded.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("it took longer than %s and was ended", m.Hooks.Timeout)
	}
	m.ranHook(HookStatus{Name: name, At: began.UTC(), Seconds: time.Since(began).Seconds(), Output: said.String()}, err)
	if err != nil {
		return &HookError{name, err}
	}
	return m.note(ctx, name, "after")
}

// layoutFile holds the layout a hook is to lead writers to: the new one, or after an undo the old one.
func (m *Move) layoutFile(ctx context.Context, hook string) (string, error) {
	side := m.Destination
	if hook == hookUndo {
		side = m.Source
	}
	var text []byte
	err := m.home(ctx, func(conn *pgx.Conn) (err error) {
		text, err = checkpoints.Layout(ctx, conn, side.Database, side.Layout)
		return err
	})
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(m.StateDir, 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(m.StateDir, "layout-*.json") // mode 0600
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	return filepath.Clean(f.Name()), errors.Join(err, f.Close())
}

func (m *Move) ranHook(s HookStatus, err error) {
	if err != nil {
		s.Error = err.Error()
		m.log.Warn("hook failed", "hook", s.Name, "seconds", s.Seconds, "error", s.Error)
	} else {
		m.log.Info("hook", "hook", s.Name, "seconds", s.Seconds)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := []HookStatus{s}
	for _, was := range m.hooks {
		if was.Name != s.Name {
			kept = append(kept, was)
		}
	}
	m.hooks = kept
}

func (m *Move) note(ctx context.Context, step, phase string) error {
	return m.home(ctx, func(conn *pgx.Conn) error { return m.book.Journal(ctx, conn, step, phase, struct{}{}) })
}

// beforeFreeze runs the hook that comes before the first freeze, and after the check, which may take its time.
func (c *cutover) beforeFreeze(ctx context.Context) error {
	if c.paused || len(c.Hooks.BeforeFreeze) == 0 {
		return nil
	}
	until := time.Now().Add(time.Duration(c.Attempts)*c.LockTimeout + c.MaxFreeze)
	err := c.hook(ctx, hookBefore, c.Hooks.BeforeFreeze, until)
	if err != nil {
		return &UndoneError{Step: hookBefore, Err: errors.Join(err, c.afterUndo(ctx)), Back: c.forward != nil}
	}
	c.paused = true
	return nil
}

// afterUndo runs the hook that ends what the one before the freeze began, also where ctx has ended.
func (m *Move) afterUndo(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	return m.hook(ctx, hookUndo, m.Hooks.AfterUndo, time.Now().Add(m.Hooks.Timeout))
}

// ranLast says which of some hooks the journal has last, and whether it ended.
func (m *Move) ranLast(ctx context.Context, names ...string) (last string, ended bool, err error) {
	err = m.home(ctx, func(conn *pgx.Conn) error {
		e, err := checkpoints.LastEntry(ctx, conn, m.Name, names)
		if err == nil && e != nil {
			last, ended = e.Step, e.Phase == "after"
		}
		return err
	})
	return last, ended, err
}

// endPaused runs afterUndo where a worker that died had run the hook before the freeze and nothing that ends it. What
// follows a switch ends it too.
func (m *Move) endPaused(ctx context.Context) error {
	if len(m.Hooks.BeforeFreeze)+len(m.Hooks.AfterUndo) == 0 {
		return nil
	}
	last, ended, err := m.ranLast(ctx, hookBefore, hookUndo, stepOpen)
	if err != nil || last == "" || last == stepOpen || last == hookUndo && ended {
		return err
	}
	return m.afterUndo(ctx)
}

// afterSwitch runs the hook that leads writers to the layout that serves now, unless it has gone well since the switch.
func (m *Move) afterSwitch(ctx context.Context) error {
	if len(m.Hooks.AfterSwitch) == 0 {
		return nil
	}
	last, ended, err := m.ranLast(ctx, hookSwitch, stepOpen)
	if err != nil || last == hookSwitch && ended {
		return err
	}
	return m.hook(ctx, hookSwitch, m.Hooks.AfterSwitch, time.Now().Add(m.Hooks.Timeout))
}
