package main

import (
	"slices"
)

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
