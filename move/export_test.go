package move

// FreeBytes is the room in the file system that holds a path.
var FreeBytes = freeBytes

// BeforeStep lets a test act between two steps of a cutover.
func (m *Move) BeforeStep(f func(step string)) { m.beforeStep = f }
