package snapshot

// What the tests of the file's layout and of its writing need.
const Magic = magic

var (
	Encode          = encode
	Decode          = decode
	Read            = read
	Write           = write
	RemoveLeftovers = removeLeftovers
)
