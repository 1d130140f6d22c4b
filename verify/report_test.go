package verify

import "testing"

func TestOnlyRowsMakeADifference(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		report TableReport
		want   State
	}{
		"equal sums":                          {TableReport{}, Clean},
		"a row that differs":                  {TableReport{differs: true, Missing: 1}, Differs},
		"a row in the wrong place":            {TableReport{Misplaced: 1}, Differs},
		"sums that differed, and no row did":  {TableReport{differs: true}, Changed},
		"a node that did not answer, besides": {TableReport{differs: true, Failures: []*Failure{{}}}, Partial},
	} {
		if test.report.settle(); test.report.State != test.want {
			t.Errorf("%s: %s, want %s", name, test.report.State, test.want)
		}
	}
}
