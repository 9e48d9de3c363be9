"""What a search makes of the compiler's own schedules of the plans that it finds."""
