package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

// app is one call of the program: where it reads and writes, and what the flags of every command said.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	config    string // path
	logFormat string
	screen    *screen // where progress is drawn on a terminal
	log       *slog.Logger
	recent    recent // what log said last
	started   bool   // a command was found and its flags and arguments were right

	open func(context.Context, *Config, *slog.Logger) (engine, error)
}

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return (&app{stdin: stdin, stdout: stdout, stderr: stderr, open: openEngine}).run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if !a.started { // cobra's own errors: no such command, no such flag, too many arguments
		err = &exitError{code: exitUsage, hint: "pgreshard --help", err: err}
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	a.report(err)
	return exitCode(err)
}

// report tells a person, or with --log-format json a log collector, why the program ends.
func (a *app) report(err error) {
	if a.logFormat == "json" {
		if log, bad := newLogger(a.stderr, "json"); bad == nil {
			log.Error(redact(err.Error()), "hint", hintOf(err), "exit", exitCode(err))
			return
		}
	}
	reportError(a.stderr, err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "pgreshard",
		Short: "Moves a live PostgreSQL database from one set of shards to another.",
		Long: "pgreshard moves a live PostgreSQL database from one set of shards to another: M shards become N, writes go on\n" +
			"all along, and end on the new shards after a short freeze.\n\n" +
			"Exit codes: 0 done, 1 failed and may be run again, 2 usage or configuration, 3 a check failed,\n" +
			"4 the cutover was undone and the source serves writes again, 5 the outcome is unknown: look first.",
		SilenceErrors:    true,
		SilenceUsage:     true,
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
	}
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp) // no argument is a file
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.PersistentFlags().StringVarP(&a.config, "config", "c", "pgreshard.toml", "configuration `file`")
	root.PersistentFlags().StringVar(&a.logFormat, "log-format", "text", "log as text or json")
	offer(root, "config", cobra.ShellCompDirectiveFilterFileExt, "toml")
	offer(root, "log-format", cobra.ShellCompDirectiveNoFileComp, "text", "json")
	root.AddCommand(
		a.planCommand(), a.migrateCommand(), a.serveCommand(), a.cutoverCommand(), a.statusCommand(), a.verifyCommand(), a.checkCommand(), a.routeCommand(), a.layoutCommand(),
		a.cancelCommand(), a.completeCommand(), a.rollbackCommand(),
		a.demoCommand(), a.versionCommand(),
	)
	return root
}

// offer has the shell offer words, or files of these endings, for the value of a flag.
func offer(c *cobra.Command, flag string, how cobra.ShellCompDirective, words ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { // fails only for a flag that is not there
		return words, how
	})
}

// load reads the configuration and makes the logger; every command but demo and version begins with it.
func (a *app) load() (*Config, error) {
	log, err := newLogger(a.stderr, a.logFormat)
	if err != nil {
		return nil, err
	}
	a.log = a.recent.keeping(log)
	c, err := loadConfig(a.config)
	if err != nil {
		return nil, err
	}
	for _, key := range c.Ignored {
		log.Warn("ignored: this PgDog key does not concern placement", "key", key)
	}
	return c, nil
}

// with runs do with the engine of the configured move, which must have a destination.
func (a *app) with(ctx context.Context, do func(engine, *Config) error) error {
	return a.withSources(ctx, func(e engine, c *Config) error {
		if !c.moves() {
			return usage("plan, serve, status and cancel are for this", "there is no [destination]: changes are published, and nothing is moved")
		}
		return do(e, c)
	})
}

// withSources is with for what needs no destination.
func (a *app) withSources(ctx context.Context, do func(engine, *Config) error) error {
	c, err := a.load()
	if err != nil {
		return err
	}
	e, err := a.open(ctx, c, a.log)
	if err != nil {
		return err
	}
	defer e.Close()
	return do(e, c)
}

// print writes a command's result, as one line of JSON or as text.
func (a *app) print(asJSON bool, r report) error {
	if asJSON {
		return a.printJSON(r)
	}
	return r.WriteText(a.stdout)
}

func (a *app) printJSON(value any) error {
	if err := json.NewEncoder(a.stdout).Encode(value); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}
