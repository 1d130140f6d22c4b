package sink

import "testing"

func TestCareGrowsWhileRowsKeepMovingAndEndsWhenTheyStop(t *testing.T) {
	t.Parallel()
	c := care{}.until(1000)
	if c.end != 1000+firstCare {
		t.Errorf("the first: %+v", c)
	}
	next := c.until(c.end + firstCare) // the next one soon after
	if next.window != 4*firstCare || next.end != c.end+5*firstCare {
		t.Errorf("the second: %+v", next)
	}
	late := next.until(next.end + 100*next.window)
	if late.window != firstCare {
		t.Errorf("one long after: %+v", late)
	}
}
