package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// problem is one thing wrong in the configuration file.
type problem struct {
	line int    // 0 where no single line is to blame
	key  string // dotted: cutover.max_freeze
	what string
	hint string
}

// configError is everything wrong in a file, found in one reading.
type configError struct {
	file     string
	problems []problem
}

// ExitCode says that the configuration is at fault.
func (e *configError) ExitCode() int { return exitUsage }

// Error has a line for each problem: where, what, hint.
func (e *configError) Error() string {
	var b strings.Builder
	for i, p := range e.problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(e.file)
		if p.line > 0 {
			fmt.Fprintf(&b, ":%d", p.line)
		}
		if p.key != "" {
			fmt.Fprintf(&b, ": %s", p.key)
		}
		fmt.Fprintf(&b, ": %s (hint: %s)", p.what, p.hint)
	}
	return b.String()
}

// loadConfig reads and checks a file. Its error is a *configError with every problem that can be found without a
// server.
func loadConfig(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, usage("-c FILE names another one", "cannot read the configuration: %w", err)
	}
	return parseConfig(filepath.Base(path), text)
}

// parseConfig is loadConfig on a text; name stands for it in messages.
func parseConfig(name string, text []byte) (*Config, error) {
	c, problems := decode(text)
	if c != nil {
		problems = append(problems, c.check()...)
	}
	if len(problems) > 0 {
		return nil, &configError{file: name, problems: problems}
	}
	return c, nil
}

// decode fills a Config. The decoder stops at the first value of a wrong type, so that line is noted, taken out and
// the rest decoded again. The Config is nil where the text is no TOML at all.
func decode(text []byte) (*Config, []problem) {
	var problems []problem
	for {
		var syntax map[string]any
		if err := toml.Unmarshal(text, &syntax); err != nil {
			if len(problems) > 0 { // a value over several lines was taken out
				return nil, problems
			}
			return nil, []problem{syntaxProblem(err)}
		}
		c := defaults()
		err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(c)
		var wrong *toml.DecodeError
		var unknown *toml.StrictMissingError
		switch {
		case errors.As(err, &unknown):
			for _, e := range unknown.Errors {
				problems = append(problems, unknownProblem(&e))
			}
		case errors.As(err, &wrong):
			problems = append(problems, valueProblem(wrong))
			line, _ := wrong.Position()
			rest, ok := withoutLine(text, line)
			if !ok {
				return nil, problems
			}
			text = rest
			continue
		case err != nil:
			problems = append(problems, syntaxProblem(err))
		}
		slices.SortStableFunc(problems, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
		return c, problems
	}
}

// withoutLine takes line n (the first is 1) out of a text without renumbering the others. It does not take out a
// section's head: its keys would become the section's before.
func withoutLine(text []byte, n int) (rest []byte, ok bool) {
	lines := bytes.Split(text, []byte("\n"))
	if bytes.HasPrefix(bytes.TrimSpace(lines[n-1]), []byte("[")) {
		return nil, false
	}
	lines[n-1] = nil
	return bytes.Join(lines, []byte("\n")), true
}

func syntaxProblem(err error) problem {
	p := problem{what: strings.TrimPrefix(err.Error(), "toml: "), hint: "the file is TOML: key = value under [section]"}
	var at *toml.DecodeError
	if errors.As(err, &at) {
		p.line, _ = at.Position()
		p.key = strings.Join(at.Key(), ".")
	}
	return p
}

var mismatch = regexp.MustCompile(`cannot decode TOML (\w+) into .* of type (\S+)$`)

func valueProblem(err *toml.DecodeError) problem {
	p := syntaxProblem(err)
	p.hint = "docs/configuration.md has every key with its type"
	if what, hint, ok := strings.Cut(p.what, " (hint: "); ok { // a type of ours said more
		p.what, p.hint = what, strings.TrimSuffix(hint, ")")
	}
	if m := mismatch.FindStringSubmatch(p.what); m != nil {
		p.what = fmt.Sprintf("takes %s, not %s", kindWords(m[2]), m[1])
	}
	if strings.Contains(p.what, "array table") {
		p.what, p.hint = "is one section, not a list of them", "write ["+p.key+"]"
	}
	return p
}

func kindWords(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]string"):
		return "a list of strings"
	case strings.HasPrefix(goType, "[]"), strings.Contains(goType, "struct"):
		return "a section"
	case goType == "bool":
		return "true or false"
	case goType == "int":
		return "a whole number"
	default:
		return "a string"
	}
}

func unknownProblem(err *toml.DecodeError) problem {
	line, _ := err.Position()
	key := err.Key()
	known := knownKeys(reflect.TypeFor[Config](), key[:max(0, len(key)-1)])
	p := problem{line: line, key: strings.Join(key, "."), what: "unknown key", hint: "take it out"}
	if len(known) > 0 {
		p.hint = "known here: " + strings.Join(known, ", ")
	}
	return p
}

// knownKeys lists the keys of the section a path leads to, nil where it leads nowhere.
func knownKeys(t reflect.Type, path []string) []string {
	for t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for f := range t.Fields() {
		name := f.Tag.Get("toml")
		if len(path) > 0 && name == path[0] {
			return knownKeys(f.Type, path[1:])
		}
		if name != "-" {
			names = append(names, name)
		}
	}
	if len(path) > 0 {
		return nil
	}
	return names
}
