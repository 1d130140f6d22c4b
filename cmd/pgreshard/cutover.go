package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"pgreshard/move"
	"pgreshard/status"
)

func (a *app) cutoverCommand() *cobra.Command {
	var o move.CutoverOptions
	var asJSON bool
	c := &cobra.Command{
		Use:   "cutover",
		Short: "Switch to the new layout now",
		Long: "Switch to the new layout now. The worker that follows the source, such as `pgreshard migrate --hold`, is asked to, and\n" +
			"what came of it is waited for. It is refused while it is not safe: status says why, and nothing overrules that.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(e engine, cfg *Config) error {
				var r cutoverReport
				r.CutoverOptions = o
				if err := a.ask(c.Context(), e, cfg, "cutover", o, &r.CutoverReport); err != nil {
					return err
				}
				return a.print(asJSON, r)
			})
		},
	}
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "print the steps with what they would do now, change nothing")
	c.Flags().BoolVar(&o.Rehearse, "rehearse", false, "run all but the switch, undo it, and say for how long writes were refused")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.MarkFlagsMutuallyExclusive("dry-run", "rehearse")
	return c
}

// cutoverReport is what came of a cutover, for a person.
type cutoverReport struct {
	move.CutoverReport
	move.CutoverOptions
}

func (r cutoverReport) OK() bool                     { return true }
func (r cutoverReport) MarshalJSON() ([]byte, error) { return json.Marshal(r.CutoverReport) }

func (r cutoverReport) WriteText(w io.Writer) error {
	var b bytes.Buffer
	for _, s := range r.Steps {
		if !r.DryRun {
			fmt.Fprintf(&b, "%-7s %.3f s\n", s.Name, s.Seconds)
			for _, who := range s.Ended {
				fmt.Fprintf(&b, "  was in the way and is ended: %s\n", who)
			}
			continue
		}
		fmt.Fprintln(&b, s.Name)
		for _, line := range s.Would {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	switch {
	case r.DryRun:
		fmt.Fprintf(&b, "nothing was changed; layout %d serves\n", r.Serving)
	case r.FreezeSeconds != nil && r.Rehearse:
		fmt.Fprintf(&b, "rehearsed and undone: writes were refused for %.3f s; layout %d serves\n", *r.FreezeSeconds, r.Serving)
	case r.FreezeSeconds != nil:
		fmt.Fprintf(&b, "layout %d serves; writes were refused for %.3f s\n", r.Serving, *r.FreezeSeconds)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// verbAnswer is what a worker replies to a verb: a result, or what the command that asked ends with.
type verbAnswer struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
	Hint   string          `json:"hint,omitempty"`
	Exit   int             `json:"exit"`
}

// cutoverVerb is POST /cutover.
func (a *app) cutoverVerb(e engine) status.Verb {
	return verb(func(ctx context.Context, o move.CutoverOptions) (move.CutoverReport, error) {
		a.log.Info("a cutover is asked for", "dry_run", o.DryRun, "rehearse", o.Rehearse)
		return e.Cutover(ctx, o)
	})
}

// verifyOptions are what `verify` asks of a worker.
type verifyOptions struct {
	Repair bool `json:"repair"`
}

// verifyVerb is POST /verify. The answer's after is what was found, last.
func verifyVerb(e engine) status.Verb {
	return verb(func(ctx context.Context, o verifyOptions) (r move.RepairReport, err error) {
		if o.Repair {
			found, err := e.Repair(ctx)
			if found != nil {
				r = *found
			}
			return r, err
		}
		r.After, err = e.VerifyNow(ctx)
		return r, err
	})
}

// verb makes a Verb of what takes options and gives a result.
func verb[O, R any](run func(context.Context, O) (R, error)) status.Verb {
	return func(ctx context.Context, body json.RawMessage) (any, bool) {
		var o O
		if len(body) > 0 {
			if err := json.Unmarshal(body, &o); err != nil {
				return verbAnswer{Error: "the request is not understood", Hint: "a worker and a command of the same version understand each other", Exit: exitUsage}, false
			}
		}
		result, err := run(ctx, o)
		if err != nil {
			return verbAnswer{Error: redact(err.Error()), Hint: hintOf(err), Exit: exitCode(err)}, false
		}
		text, err := json.Marshal(result)
		if err != nil {
			return verbAnswer{Error: "the answer has no JSON form", Exit: exitFailed}, false
		}
		return verbAnswer{Result: text}, true
	}
}

// ask has the running worker do a verb, and waits for what comes of it. Whether one runs is read from its lease.
func (a *app) ask(ctx context.Context, e engine, c *Config, name string, options, result any) error {
	answer, err := postWorker(ctx, c, name, options)
	if err != nil {
		s, readErr := e.Status(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("no longer waiting for the worker, which goes on: %w", ctx.Err())
		case readErr != nil:
			return readErr
		case s.Idle:
			return noWorker(name, s)
		}
		return &exitError{code: exitFailed, hint: "run this on the worker's machine, with its configuration and as its user",
			err: fmt.Errorf("the worker that holds this move (%s) cannot be asked: %w", s.Worker, err)}
	}
	if answer.Exit != exitDone {
		return &exitError{code: answer.Exit, hint: answer.Hint, err: errors.New(answer.Error)}
	}
	if err := json.Unmarshal(answer.Result, result); err != nil {
		return fmt.Errorf("read the worker's answer: %w", err)
	}
	return nil
}

// postWorker sends a verb to the address the configuration names.
func postWorker(ctx context.Context, c *Config, name string, options any) (answer verbAnswer, err error) {
	client, base, err := workerClient(c)
	if err != nil {
		return answer, err
	}
	defer client.CloseIdleConnections()
	body, err := json.Marshal(options)
	if err != nil {
		return answer, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/"+name, bytes.NewReader(body))
	if err != nil {
		return answer, err
	}
	token, err := readToken(c.Move.Name)
	if err != nil {
		return answer, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusConflict {
		return answer, fmt.Errorf("it answers %s", response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&answer); err != nil {
		return answer, fmt.Errorf("read the worker's answer: %w", err)
	}
	return answer, nil
}
