package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
)

// notBuilt is the answer to what the program is to do one day and does not do yet.
func notBuilt(what string) error {
	return &exitError{code: exitUsage, hint: "the README lists what is", err: fmt.Errorf("%s is not built yet", what)}
}

// laterCommands answer with notBuilt and stand in no help.
func (a *app) laterCommands() []*cobra.Command {
	var list []*cobra.Command
	for _, name := range []string{"check"} {
		list = append(list, &cobra.Command{
			Use: name, Hidden: true, DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error { return notBuilt("pgreshard " + name) },
		})
	}
	return list
}

// laterFlags gives a command flags that stand in no help and answer with notBuilt.
func laterFlags(c *cobra.Command, names ...string) {
	for _, name := range names {
		c.Flags().String(name, "", "")
		c.Flags().Lookup(name).NoOptDefVal = "-"
		_ = c.Flags().MarkHidden(name) // fails only for a flag that is not there
	}
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		for _, name := range names {
			if c.Flags().Changed(name) {
				return notBuilt("pgreshard " + c.Name() + " --" + name)
			}
		}
		return nil
	}
	// A value may stand apart from its flag (--shards 8..16): then it looks like an argument.
	args := c.Args
	c.Args = func(c *cobra.Command, given []string) error {
		for _, name := range names {
			if c.Flags().Changed(name) {
				return nil
			}
		}
		return args(c, given)
	}
}

// unbuilt refuses settings that would be ignored in silence, but for those that the caller heeds.
func (c *Config) unbuilt(heeded ...string) error {
	var problems []problem
	for _, s := range []struct {
		set  bool
		key  string
		hint string
	}{
		{c.Source.replicated() || c.Destination.replicated(), "replicas", "take them out: nothing reads there yet"},
		{len(c.Checks) > 0, "checks", "take the section out"},
		{!c.General.ShowKeys, "general.show_keys", "true"},
	} {
		if s.set && !slices.Contains(heeded, s.key) {
			problems = append(problems, problem{key: s.key, what: "what it asks for is not built yet", hint: s.hint})
		}
	}
	if len(problems) > 0 {
		return &configError{file: "configuration", problems: problems}
	}
	return nil
}

// replicated says whether any shard names replicas.
func (s clusterSection) replicated() bool {
	return slices.ContainsFunc(s.Shards, func(shard shardSection) bool { return len(shard.Replicas) > 0 })
}
