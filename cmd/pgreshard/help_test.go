package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// shown are the commands a help lists, cobra's own left out.
func shown(root *cobra.Command) (list []*cobra.Command) {
	for _, c := range root.Commands() {
		if !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
			list = append(list, c)
		}
	}
	return list
}

// Help reads alike for every command, and the README's table names the same commands and flags.
func TestHelpAndTheReadmesTableSayTheSame(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(readme), "\n## Commands\n")
	if !ok {
		t.Fatal("the README has no section Commands")
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| (`[a-z].*?) \\| (.*) \\|$").FindAllStringSubmatch(section, -1) {
		for _, name := range regexp.MustCompile("`([a-z]+)").FindAllStringSubmatch(m[1], -1) {
			rows[name[1]] = m[2]
		}
	}
	commands := shown((&app{}).root())
	for _, c := range commands {
		t.Run(c.Name(), func(t *testing.T) {
			row, told := rows[c.Name()]
			if !told {
				t.Error("it is not in the README's table")
			}
			if c.Short == "" || !unicode.IsUpper(rune(c.Short[0])) || strings.HasSuffix(c.Short, ".") {
				t.Errorf("short: %q", c.Short)
			}
			if c.Long != "" && !strings.HasSuffix(c.Long, ".") {
				t.Errorf("long does not end a sentence: %q", c.Long)
			}
			for line := range strings.Lines(c.Long) {
				if len([]rune(line)) > 125 {
					t.Errorf("a line of %d characters: %q", len([]rune(line)), line)
				}
			}
			c.LocalFlags().VisitAll(func(f *pflag.Flag) {
				if f.Hidden || f.Name == "help" {
					return
				}
				if f.Usage == "" || strings.HasSuffix(f.Usage, ".") || unicode.IsUpper(rune(f.Usage[0])) && !strings.HasPrefix(f.Usage, "JSON") {
					t.Errorf("--%s: %q", f.Name, f.Usage)
				}
				if c.Name() != "demo" && !strings.Contains(row, "`--"+f.Name) {
					t.Errorf("the README's table does not name --%s", f.Name)
				}
			})
			for _, flag := range regexp.MustCompile("`--([a-z-]+)").FindAllStringSubmatch(row, -1) {
				if c.Flags().Lookup(flag[1]) == nil {
					t.Errorf("the README's table names --%s, which there is not", flag[1])
				}
			}
			code, stdout, stderr := call(t, &fakeEngine{}, "", c.Name(), "--help")
			if code != exitDone || stderr != "" || !strings.Contains(stdout, "Usage:\n  pgreshard "+c.Name()) || !strings.Contains(stdout, "--config file") {
				t.Errorf("--help: %d\n%s%s", code, stdout, stderr)
			}
		})
	}
	if len(commands) < 12 {
		t.Errorf("only %d commands", len(commands))
	}
}

func TestTheShellCompletesCommandsFlagsAndTheirValues(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		words []string
		want  []string // how the answer's lines begin
	}{
		"commands":               {[]string{"c"}, []string{"cancel\t", "check\t", "complete\t", "completion\t", "cutover\t", ":4"}},
		"flags":                  {[]string{"cutover", "--"}, []string{"--config\t", "--log-format\t", "--dry-run\t", "--help\t", "--json\t", "--rehearse\t", ":4"}},
		"a format":               {[]string{"layout", "--format", ""}, []string{"pgdog", ":4"}},
		"how to log":             {[]string{"plan", "--log-format", ""}, []string{"text", "json", ":4"}},
		"a file of this ending":  {[]string{"-c", ""}, []string{"toml", ":8"}},
		"any file for a report":  {[]string{"plan", "--report", ""}, []string{":0"}},
		"nothing as an argument": {[]string{"status", ""}, []string{":4"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if code := run(t.Context(), append([]string{"__complete"}, test.words...), nil, &out, io.Discard); code != exitDone {
				t.Fatalf("ended with %d", code)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if !slices.EqualFunc(lines, test.want, func(line, want string) bool {
				return strings.HasPrefix(line, want) && (line == want || want[len(want)-1] == '\t')
			}) {
				t.Errorf("%q, want %q", lines, test.want)
			}
		})
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			var out, stderr bytes.Buffer
			if code := run(t.Context(), []string{"completion", shell}, nil, &out, &stderr); code != exitDone || !strings.Contains(out.String(), "pgreshard") {
				t.Fatalf("ended with %d: %s", code, stderr.String())
			}
			path, err := exec.LookPath(shell)
			if err != nil || shell == "powershell" {
				return // it is not here to read the script
			}
			read := exec.CommandContext(t.Context(), path, "-n")
			read.Stdin = &out
			if said, err := read.CombinedOutput(); err != nil {
				t.Errorf("%s cannot read the script: %v\n%s", shell, err, said)
			}
		})
	}
}
