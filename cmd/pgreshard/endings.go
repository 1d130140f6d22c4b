package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"pgreshard/move"
)

func (a *app) cancelCommand() *cobra.Command {
	var o move.CancelOptions
	c := &cobra.Command{
		Use:   "cancel",
		Short: "Stop a move before the switch and take away everything it made",
		Long: "Stop a move before the switch: the source serves as before, and what the move made on both sides (slots, publications,\n" +
			"the fence, schema pgreshard) is dropped. The rows it has copied stay, unless --drop-data is given. No worker may run.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withSources(c.Context(), func(e engine, config *Config) error {
				const stay = "the copied tables stay on the shards"
				if !o.DropData && config.moves() {
					fmt.Fprintf(a.stderr, "pgreshard: %s; --drop-data drops them too\n", stay)
				}
				if err := e.Cancel(c.Context(), o); err != nil {
					return err
				}
				if !config.moves() {
					_, err := fmt.Fprintf(a.stdout, "move %s is cancelled: nothing of it is left on any node; what it has published stays at NATS\n", config.Move.Name)
					return err
				}
				// What is not the move's own but came with the tables cannot be told from what was there.
				schema := ""
				if config.Schema.Create {
					schema = "; types, functions, views and free sequences that came with the tables stay on the shards"
				}
				left := "nothing of it is left on any node" + schema
				if !o.DropData {
					left = stay + "; drop them there before the next migrate; nothing else of it is left on any node" + schema
				}
				_, err := fmt.Fprintf(a.stdout, "move %s is cancelled: %s\n", config.Move.Name, left)
				return err
			})
		},
	}
	c.Flags().BoolVar(&o.DropData, "drop-data", false, "also drop the destination tables the move made, and empty those it found")
	c.Flags().BoolVar(&o.TakeOver, "take-over", false, "although another worker holds the move and cannot be reached")
	return c
}

func (a *app) completeCommand() *cobra.Command {
	var release bool
	c := &cobra.Command{
		Use:   "complete",
		Short: "End a move that has switched",
		Long: "End a move that has switched: the old layout does not follow any more, what the move made is dropped. Two things stay:\n" +
			"the layout record on the serving shards, and the fence on the retired source, so that a forgotten writer is refused and\n" +
			"not lost. A worker that runs is asked to, and ends.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(e engine, config *Config) error {
				fenced, err := a.complete(c.Context(), e, config, release)
				if err != nil {
					return err
				}
				stays := "the layout record on every shard"
				if fenced {
					stays += ", and the fence on the retired source"
				}
				_, err = fmt.Fprintf(a.stdout, "move %s is completed; what stays: %s\n", config.Move.Name, stays)
				return err
			})
		},
	}
	c.Flags().BoolVar(&release, "release-source", false, "take the fence off the retired source too")
	return c
}
