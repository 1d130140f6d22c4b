package move

// BeforeStep lets a test act between two steps of a cutover.
func (m *Move) BeforeStep(f func(step string)) { m.beforeStep = f }
