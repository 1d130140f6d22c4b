package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pgreshard/move"
	"pgreshard/status"
)

func (a *app) migrateCommand() *cobra.Command {
	var hold, yes bool
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Move the database: copy, follow, verify, cut over",
		Long: "Move the database: schema, copy, indexes, catch up, verify, cut over. Writers go on all along; they are refused\n" +
			"for the freeze at the end. Stopped or killed, the same command goes on where it was.\n" +
			"After the switch it keeps the old layout following, for a rollback, until `complete` or `rollback` ([cutover] reverse).\n" +
			"On a terminal it asks before the freeze; elsewhere it wants to be told with --yes or --hold.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !yes && !hold && !(terminal(a.stdin) && terminal(a.stderr)) {
				return usage("--yes to switch without asking, --hold to follow only",
					"migrate switches to the new layout in the end, and there is no terminal to ask on")
			}
			return a.work(c.Context(), move.MigrateOptions{}, hold, !yes)
		},
	}
	c.Flags().BoolVar(&hold, "hold", false, "do not cut over: follow the source until `pgreshard cutover` says so")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask before the freeze")
	return c
}

func (a *app) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the move as a service, which switches only when it is told to",
		Long: "Run the same worker as migrate, as a service: it copies, follows, and goes on following. cutover, verify, rollback and\n" +
			"complete are made when they are asked for, by those commands or on the page, and never by themselves; after a rollback it\n" +
			"follows the source again. It starts in whatever state the move is in, and ends once the move is completed.\n" +
			"With [cdc] it publishes every change of the layout that serves to NATS JetStream, and goes on after complete; without a\n" +
			"[destination] it does nothing else.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.work(c.Context(), move.MigrateOptions{Serve: true}, true, false)
		},
	}
}

// work runs the worker, its HTTP server and its progress, until the worker ends.
func (a *app) work(ctx context.Context, o move.MigrateOptions, hold, ask bool) error {
	if terminal(a.stdout) {
		a.screen = &screen{out: a.stdout}
		if terminal(a.stderr) {
			a.stderr = a.screen // log lines go above the bars
		}
	}
	with := a.with
	if o.Serve {
		with = a.withSources
	}
	return with(ctx, func(e engine, c *Config) error {
		defer limitMemory(c)()
		// The worker's engine is the worker's alone; questions over HTTP have their own sessions.
		asked, err := a.open(ctx, c, a.log)
		if err != nil {
			return err
		}
		defer asked.Close()
		server, err := a.newServer(e, asked, c)
		if err != nil {
			return err
		}
		board, err := a.openBoard(ctx, c)
		if err != nil {
			return err
		}
		if board != nil {
			defer board.Close()
			if o.CDC, err = board.cdc(c); err != nil {
				return err
			}
		}
		if o.CDC != nil {
			defer o.CDC.Conn.Close()
		}
		beside, stop := context.WithCancel(ctx)
		var sides sync.WaitGroup
		sides.Go(func() { serveHTTP(beside, server, c.HTTP.Listen, a.log) })
		sides.Go(func() { a.follow(beside, e) })
		if board != nil && c.moves() {
			sides.Go(func() { board.keep(beside, e.Snapshot) })
		}
		o.Ready = func(ctx context.Context) (bool, error) { return a.ready(ctx, c.Cutover.Hours, hold, ask) }
		err = e.Migrate(ctx, o)
		if err == nil && e.Snapshot().State == move.StateCompleted {
			a.ended(ctx, e, c.Move.Name)
		}
		stop()
		sides.Wait()
		return err
	})
}

// follow shows progress in the way the output allows.
func (a *app) follow(ctx context.Context, e engine) {
	switch {
	case a.screen != nil:
		followOn(ctx, a.screen, e.Snapshot)
	case a.logFormat == "text":
		follow(ctx, a.stdout, e.Snapshot)
	}
}

// newServer wires what is served to what answers, and asks for the token where others can reach it. One question is
// answered at a time.
func (a *app) newServer(worker, asked engine, c *Config) (*status.Server, error) {
	var one sync.Mutex
	s := status.Config{
		Snapshot: worker.Snapshot,
		Layout: func(ctx context.Context) (any, error) {
			one.Lock()
			defer one.Unlock()
			return asked.Layout(ctx)
		},
		Route: func(ctx context.Context, table string, key []string) (any, error) {
			one.Lock()
			defer one.Unlock()
			return asked.Route(ctx, table, key)
		},
		Report: func(ctx context.Context, page io.Writer) (any, error) {
			one.Lock()
			defer one.Unlock()
			e, err := asked.Evidence(ctx)
			if err == nil && page != nil {
				err = writeEvidence(page, e)
			}
			return e, err
		},
		Words: stateLine, Events: a.recent.events,
		Verbs: map[string]status.Verb{"cutover": a.cutoverVerb(worker), "rollback": a.rollbackVerb(worker), "complete": a.completeVerb(worker), "verify": verifyVerb(worker), "check": checkVerb(worker, c)},
		Cert:  c.HTTP.TLSCert,
		Key:   c.HTTP.TLSKey,
	}
	host, _, _ := net.SplitHostPort(c.HTTP.Listen)
	s.Open = loopback(host)
	var err error
	if s.Token, err = makeToken(c.Move.Name); err != nil && !s.Open {
		return nil, err
	} else if err != nil {
		a.log.Warn("this worker cannot be asked to do anything: there is no token", "error", err.Error(), "hint", hintOf(err))
	}
	s.MetricsToken = metricsToken()
	return status.New(s), nil
}

const listenAgain = time.Second

// serveHTTP serves until ctx ends. The move does not depend on it: an address in use, as by a worker this one waits
// for, is tried again and again.
func serveHTTP(ctx context.Context, s *status.Server, address string, log *slog.Logger) {
	told := false
	for ctx.Err() == nil {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err == nil {
			log.Info("status page", "address", listener.Addr().String())
			err = s.Serve(ctx, listener)
		}
		if err != nil && ctx.Err() == nil && !told {
			told = true
			log.Warn("no status page for now, the move goes on", "address", address, "in_use", errors.Is(err, syscall.EADDRINUSE), "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenAgain):
		}
	}
}

const windowAgain = time.Second

// ready is asked before the freeze: it waits for the window, then for the person's word where one is to be asked.
func (a *app) ready(ctx context.Context, hours window, hold, ask bool) (bool, error) {
	if hold {
		a.log.Info("held before the cutover: `pgreshard cutover` makes it")
		return false, nil
	}
	if !hours.open(time.Now()) {
		a.log.Info("waiting for the cutover window", "opens", hours.opens(time.Now()))
	}
	for !hours.open(time.Now()) {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(windowAgain):
		}
	}
	if !ask {
		return true, nil
	}
	return a.confirm(ctx)
}

// confirm asks the person at the terminal before the freeze. A read from a terminal cannot be interrupted, so its
// goroutine is left behind when the context ends; the process ends right after.
func (a *app) confirm(ctx context.Context) (bool, error) {
	fmt.Fprintln(a.stderr, "Ready to cut over. Writes will be refused for a moment. Cut over now? [y/N]")
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.stdin).ReadString('\n') // an end of input is a no
		answers <- line
	}()
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case line := <-answers:
		answer := strings.ToLower(strings.TrimSpace(line))
		if answer == "y" || answer == "yes" {
			return true, nil
		}
		fmt.Fprintln(a.stderr, "Not cutting over: the destination goes on following the source until this command is stopped (Ctrl-C loses nothing). "+
			"Run it again to be asked again.")
		return false, nil
	}
}
