package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// withSignals ends the context at the first SIGINT or SIGTERM, and the process at the second. Neither loses
// anything: what is not committed on a shard is read again.
func withSignals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		stopAtSecond(signals, done, cancel, func() { os.Exit(exitFailed) })
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel(nil)
	}
}

// stopAtSecond is the life of the goroutine that waits for signals; exit must not return control to the work.
func stopAtSecond(signals <-chan os.Signal, done <-chan struct{}, cancel context.CancelCauseFunc, exit func()) {
	select {
	case s := <-signals:
		cancel(&exitError{code: exitFailed, hint: "the same command goes on from here", err: stopped{s}})
	case <-done:
		return
	}
	select {
	case <-signals:
		exit()
	case <-done:
	}
}

// stopped is the cause of a context that a signal ended.
type stopped struct{ signal os.Signal }

func (s stopped) Error() string { return fmt.Sprintf("stopped by signal: %v", s.signal) }
func (s stopped) Is(target error) bool {
	return target == context.Canceled
}
