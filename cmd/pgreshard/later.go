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
